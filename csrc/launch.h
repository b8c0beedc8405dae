// How the kernels are launched: names and geometry from the numbers of rules.h. train/kernels/cuda/launch.py has the same
// functions, and a test compares the two. Plain C++ without torch or CUDA.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "args.h"
#include "rules.h"

namespace reel {

struct ForwardLaunch {
    int vectors, largest;  // the class: vectors of a row that a thread holds, largest block
    int threads, rows;     // of a block
};

struct Launch {
    int elements, largest;     // the class: elements a thread holds, largest team
    int threads, shared_bytes; // of a team, of a block
    int cluster = 1;           // blocks that share a row
    int teams = 1;             // of a block
};

// Shared memory of a team for rows of `row_bytes` a column in all streams.
inline int ring_bytes(int row_bytes, int elements, i64 threads) {
    const int rows = row_bytes > kNarrowBytes ? kShallowRing : row_bytes > kThinBytes ? kDeepRing : kThinRing;
    return int(rows * row_bytes * elements * threads);
}

inline std::optional<ForwardLaunch> forward_launch(bool gated, int dim, int element_bytes, bool aligned) {
    if (!aligned || dim % (kVectorBytes / element_bytes)) return std::nullopt;
#define REEL_SIZES(vectors, largest, ...) {vectors, largest},
    static constexpr int kPlain[][2] = {REEL_FORWARD_CLASSES(REEL_SIZES, )};
    static constexpr int kGated[][2] = {REEL_GATED_FORWARD_CLASSES(REEL_SIZES, )};
#undef REEL_SIZES
    const int row = dim * element_bytes / kVectorBytes;
    const auto found = [&](const auto& classes) -> std::optional<ForwardLaunch> {
        for (const auto& [vectors, largest] : classes)
            if (row <= vectors * largest) {
                const int threads = (row + vectors * kWarp - 1) / (vectors * kWarp) * kWarp;
                return ForwardLaunch{vectors, largest, threads, gated ? 1 : kForwardRows};
            }
        return std::nullopt;
    };
    return gated ? found(kGated) : found(kPlain);
}

inline std::optional<Launch> backward_launch(
        bool gated, int dim, int element_bytes, bool aligned, int shared_limit, bool clusters, bool per_token,
        int most_teams = kTeams) {
    if (!aligned || dim % (kVectorBytes / element_bytes)) return std::nullopt;
    const int streams = gated ? 4 : 2;
#define REEL_SIZES(elements, largest, back, token, ...) {elements, largest, 1, back, token},
#define REEL_CLUSTER_SIZES(elements, largest, blocks, ...) {elements, largest, blocks, 0, 0},
    static constexpr int kClasses[][5] = {
        REEL_REGISTER_CLASSES(REEL_SIZES, ) REEL_CLUSTER_CLASSES(REEL_CLUSTER_SIZES, )};
#undef REEL_SIZES
#undef REEL_CLUSTER_SIZES
    const int size = kVectorBytes / element_bytes;
    for (const auto& [elements, largest, blocks, back, token] : kClasses) {
        if (dim > elements * largest * blocks || (blocks > 1 && !clusters)) continue;
        const int warp_vectors = elements / size * kWarp, vectors = (dim / size + blocks - 1) / blocks;
        const int threads = (vectors + warp_vectors - 1) / warp_vectors * kWarp;
        const int ring = ring_bytes(element_bytes * streams, elements, threads), sums = (gated ? 3 : 2) * 4 * dim;
        if (ring > shared_limit) return std::nullopt;
        const int teams = std::max(1, std::min({most_teams, (per_token ? token : back) / threads, (shared_limit - sums) / ring}));
        return Launch{elements, largest, threads, teams * ring + (teams > 1 ? sums : 0), blocks, teams};
    }
    return std::nullopt;
}

inline i64 ceil_div(i64 value, i64 by) { return (value + by - 1) / by; }

inline i64 rows_per_block(i64 rows, i64 resident) { return rows ? ceil_div(rows, resident > 1 ? resident : 1) : 1; }

inline i64 slots(i64 rows, i64 per_block, i64 groups) {
    const i64 found = ceil_div(rows, per_block) + groups - 1;
    return found ? found : 1;
}

struct ReduceBlock {
    int columns, lanes;
};

// Block of the second stage. Tiles are narrow while there are few, so that all multiprocessors have one; a lane reads some slots.
inline ReduceBlock reduce_block(i64 groups, int dim, i64 slots) {
    ReduceBlock block{kReduceColumns, kWarp / kReduceColumns};
    while (block.columns < kWarp && groups * ceil_div(dim, block.columns) > kReduceBlocks) block.columns *= 2, block.lanes /= 2;
    while (2 * block.columns * block.lanes <= kReduceThreads && kReduceAhead / 2 * block.lanes * groups < slots) block.lanes *= 2;
    return block;
}

inline std::string forward_name(const std::string& family, const std::string& x, const std::string& m,
                                const ForwardLaunch& launch) {
    return family + "_forward_" + x + "_" + m + "_v" + std::to_string(launch.vectors) + "_t" + std::to_string(launch.largest);
}

inline std::string backward_name(const std::string& family, const std::string& x, const std::string& m,
                                 const Launch& launch, bool per_token) {
    return family + "_backward" + (per_token ? "_token_" : "_") + x + "_" + m + "_e" + std::to_string(launch.elements) +
           "_t" + std::to_string(launch.largest) + (launch.cluster > 1 ? "_c" + std::to_string(launch.cluster) : "");
}

// `step` is forward, backward_rows or backward_columns.
inline std::string tiled_name(const std::string& family, const std::string& step, const std::string& x,
                              const std::string& m, bool per_token) {
    return family + "_" + step + "_tiled" + (per_token ? "_token_" : "_") + x + "_" + m;
}

inline int tiled_threads(int dim) {
    const i64 threads = ceil_div(dim, kWarp) * kWarp;
    return threads < kTiledThreads ? int(threads) : kTiledThreads;
}

inline bool is_per_token(i64 rows, i64 groups, bool packed) { return !packed && groups == rows && rows > 1; }

// Elements between the rows of a tensor [..., D] of `dims` dimensions; nothing if there is no single stride.
template <typename Int>
std::optional<i64> row_stride(const Int* sizes, const Int* strides, int64_t dims) {
    if (strides[dims - 1] != 1 && sizes[dims - 1] != 1) return std::nullopt;
    std::optional<i64> found;
    i64 count = 1;
    for (int64_t i = dims - 2; i >= 0; --i) {
        if (sizes[i] == 1) continue;
        if (found && strides[i] != *found * count) return std::nullopt;
        if (!found) found = strides[i];
        count *= sizes[i];
    }
    return found ? *found : i64(sizes[dims - 1]);
}

inline bool is_aligned(const void* pointer, i64 stride, int element_bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0 && stride * element_bytes % kVectorBytes == 0;
}

}  // namespace reel
