// How the kernels of qk_norm.cu are launched: the twin of train/kernels/cuda/launch_qk.py, as launch.h is of launch.py.
#pragma once
#include "launch.h"

namespace reel {

struct PairLaunch {
    int threads, lanes, shared_bytes;
};

inline std::optional<PairLaunch> pair_launch(bool backward, i64 heads, i64 width, int element_bytes, bool across,
                                             bool halves_rotate, bool aligned, int shared_limit) {
    const int size = kVectorBytes / element_bytes;
    const i64 vectors = width / size;
    if (!aligned || !vectors || width % size || (halves_rotate && vectors % 2)) return std::nullopt;
    i64 lanes = ceil_div(vectors, 2);
    if (!across) {
        if (lanes > kWarp) return std::nullopt;
        i64 power = 1;
        while (power < lanes) power *= 2;
        lanes = power;
    }
    const i64 threads = ceil_div(heads * lanes, kPairElements / (2 * size) * kWarp) * kWarp;
    const int shared_bytes = ring_bytes(element_bytes * (backward ? 2 : 1), kPairElements, threads);
    if (threads > kPairThreads || shared_bytes > shared_limit) return std::nullopt;
    return PairLaunch{int(threads), int(lanes), shared_bytes};
}

inline i64 pair_rows_per_block(i64 q_rows, i64 k_rows, i64 resident) { return rows_per_block(q_rows + k_rows, resident - 1); }

// Elements between samples, tokens and heads of [B, L, H, d]; nothing if channels are not dense.
template <typename Int>
std::optional<HeadStrides> head_strides(const Int* sizes, const Int* strides) {
    if (strides[3] != 1 && sizes[3] != 1) return std::nullopt;
    const auto over = [&](int i) { return sizes[i] == 1 ? i64(0) : i64(strides[i]); };
    return HeadStrides{over(0), over(1), over(2)};
}

inline std::string pair_kernel_name(bool backward, bool across, const std::string& x) {
    return std::string(backward ? "qk_norm_backward_" : "qk_norm_forward_") + (across ? "across_" : "head_") + x;
}

}  // namespace reel
