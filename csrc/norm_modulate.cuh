// Norm and modulation, forward and backward, with or without the gated residual in front.
//
// Rows: x_ND, one row per token. LN: n = (x - mean) * rstd; RMS: n = x * rstd. Then, with the optional affine
// weight and bias, y = (n * weight + bias) * (1 + scale) + shift, computed as n * gain + offset with a group's gain and
// offset in registers. With the gate: x = round(residual + gate * branch).
// Statistics and sums are fp32 always; the saved rstd (and mean, for LN) are 8 bytes a row.
//
// A block owns `rows_per_cta` consecutive rows and streams them through a ring in shared memory: each thread copies
// its own 16-byte vectors ahead and reads back only what it copied itself, so the ring needs no barrier. Thread t of
// T holds the vectors t, t + T, ... of its row.
//
// Sums over rows (dscale, dshift, dgate) are gathered in registers while the rows pass; a block writes them out for
// each group it meets: block c, group g to slot c + g of `partials`. Blocks and groups both follow the rows, so c + g
// grows from one (block, group) pair to the next and no two pairs share a slot: blocks + groups - 1 slots do for any
// grouping. A second kernel adds a group's slots up in one order. There are no atomics.
#pragma once
#include "device.cuh"

namespace reel {

template <typename M>
__device__ __forceinline__ const M* mod_row(const void* base, i64 stride, i64 group) {
    return static_cast<const M*>(base) + group * stride;
}

// A thread's place in the rows of a tensor, from row to row without a product.
template <typename X>
struct Stream {
    X* at;
    i64 step;

    __device__ __forceinline__ Stream(const void* base, i64 step, i64 row)
        : at(const_cast<X*>(static_cast<const X*>(base)) + row * step), step(step) {}
    __device__ __forceinline__ void next() { at += step; }
};

// Where BLOCKS of a cluster share a row, each has a part of its columns, equal but for the last.
template <typename X, int VECS, int STREAMS, int BLOCKS = 1>
struct Ring {
    static constexpr int kStages = stages<X, STREAMS>();
    uint4* slots;
    int dim;
    int begin = 0, count = dim / Pack<X>::kSize;  // first vector and number of vectors of this block

    __device__ __forceinline__ Ring(uint4* slots, int dim) : slots(slots), dim(dim) {
        if constexpr (BLOCKS > 1) begin = cluster_rank() * part(), count = vectors_of(cluster_rank());
    }
    __device__ __forceinline__ int part() const { return (dim / Pack<X>::kSize + BLOCKS - 1) / BLOCKS; }
    __device__ __forceinline__ int vectors_of(int rank) const {
        const int left = dim / Pack<X>::kSize - rank * part();
        return left < part() ? left : part();
    }
    // Vector `v` of this thread lies at the same place of the block's part of a row and of a slot.
    __device__ __forceinline__ int place(int v) const { return v * blockDim.x + threadIdx.x; }
    // Not `count` for a whole row: the compiler would issue one instruction more.
    __device__ __forceinline__ bool holds(int v) const { return place(v) < (BLOCKS > 1 ? count : dim / Pack<X>::kSize); }
    __device__ __forceinline__ int column(int v) const { return (begin + place(v)) * Pack<X>::kSize; }
    // True for one block of those that share a row.
    __device__ __forceinline__ bool leads() const { return begin == 0; }
    // Elements of a row that a warp holds; the warps of further blocks follow this one's.
    __device__ __forceinline__ float elements(int warp) const {
        int vectors = 0, held = count;
        if constexpr (BLOCKS > 1) {
            const int warps = blockDim.x / kWarp;
            held = vectors_of(warp / warps), warp %= warps;
        }
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int left = held - v * static_cast<int>(blockDim.x) - warp * kWarp;
            vectors += left < 0 ? 0 : left < kWarp ? left : kWarp;
        }
        return vectors * Pack<X>::kSize;
    }
    __device__ __forceinline__ uint4* slot(int turn, int stream) const {
        return slots + (static_cast<unsigned>(turn) % kStages * STREAMS + stream) * VECS * blockDim.x;
    }
    __device__ __forceinline__ void copy(int turn, int stream, const Stream<X>& from) const {
#pragma unroll
        for (int v = 0; v < VECS; ++v)
            if (holds(v))
                copy_async(slot(turn, stream) + place(v), reinterpret_cast<const uint4*>(from.at) + begin + place(v));
    }
    __device__ __forceinline__ void read(int turn, int stream, int v, float* out) const {
        Pack<X>::unpack(slot(turn, stream)[place(v)], out);
    }
    // `row`: elements before the row, of a contiguous tensor.
    __device__ __forceinline__ void write(void* base, i64 row, int v, const uint4& value) const {
        store_vector(static_cast<X*>(base) + row + column(v), value);
    }
};

// What a group's modulation makes of a thread's columns, with the affine weight and bias in it: y = n * gain + offset.
template <typename X, typename M, int VECS>
struct Modulated {
    static constexpr int kSize = Pack<X>::kSize;
    float gain[VECS][kSize], offset[VECS][kSize];

    template <typename Rows>
    __device__ __forceinline__ void load(const Modulation& mod, i64 group, const Rows& ring) {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            const int column = ring.column(v);
            float affine[kSize];
            load_shared_row<M, kSize>(mod_row<M>(mod.scale, mod.scale_stride, group) + column, gain[v]);
            load_shared_row<M, kSize>(mod_row<M>(mod.shift, mod.shift_stride, group) + column, offset[v]);
#pragma unroll
            for (int i = 0; i < kSize; ++i) gain[v][i] += 1.f;
            if (mod.bias) {
                load_shared_row<M, kSize>(static_cast<const M*>(mod.bias) + column, affine);
#pragma unroll
                for (int i = 0; i < kSize; ++i) offset[v][i] = fmaf(affine[i], gain[v][i], offset[v][i]);
            }
            if (mod.weight) {
                load_shared_row<M, kSize>(static_cast<const M*>(mod.weight) + column, affine);
#pragma unroll
                for (int i = 0; i < kSize; ++i) gain[v][i] *= affine[i];
            }
        }
    }
};

// One barrier a row: each warp takes the squares around its own mean, and the warps' are merged as Chan, Golub and
// LeVeque do. With a gate two barriers, since merging takes two registers more than there are; in a cluster one, too,
// since its barrier takes longer.
template <typename X, typename M, int VECS, bool GATE, int THREADS, int BLOCKS = 1>
__device__ __forceinline__ void forward(const ForwardArgs& args) {
    constexpr int kSize = Pack<X>::kSize, kLanes = warps_of(THREADS * BLOCKS);
    constexpr bool kMerge = !GATE || BLOCKS > 1;
    static_assert(kLanes <= kWarp, "a warp merges one part a lane");
    using Rows = Ring<X, VECS, GATE ? 2 : 1, BLOCKS>;
    REEL_DYNAMIC_SHARED(shared);
    __shared__ float sums[2][kLanes];
    __shared__ float2 moments[2][kLanes];
    REEL_SHARED(typename Exchange<BLOCKS>::Buffers, exchanged);
    const Rows ring{shared, args.dim};
    const Modulation& mod = args.modulation;
    const i64 first = blockIdx.x / BLOCKS * args.rows_per_cta;
    if (first >= args.rows) return;
    const int rows = args.rows - first < args.rows_per_cta ? args.rows - first : args.rows_per_cta;
    const int warp = threadIdx.x / kWarp, other = threadIdx.x % kLanes, warps = blockDim.x / kWarp * BLOCKS;
    const int mine = BLOCKS > 1 ? cluster_rank() * (blockDim.x / kWarp) + warp : warp;
    const float share = 1.f / ring.elements(mine), others = other < warps ? ring.elements(other) : 0.f;
    Stream<X> x(args.x, args.x_stride, first), branch(args.branch, args.branch_stride, first);
    i64 out = first * args.dim;
    const auto fetch = [&](int turn) {
        if (turn < rows) {
            ring.copy(turn, 0, x);
            if constexpr (GATE) ring.copy(turn, 1, branch);
        }
        x.next(), branch.next();
        commit_copies();
    };
    for (int turn = 0; turn < Rows::kStages - 1; ++turn) fetch(turn);
    const Exchange<BLOCKS> exchange(exchanged);
    Cursor cursor(args.groups, first);
    Modulated<X, M, VECS> modulated;
    int group_end = 0;  // the turn at which the group of these rows ends
    const float inverse = 1.f / args.dim;
    for (int turn = 0; turn < rows; ++turn) {
        fetch(turn + Rows::kStages - 1);
        if (turn == group_end) {
            cursor.move_to(first + turn);
            modulated.load(mod, cursor.group, ring);
            group_end = cursor.end - first < rows ? cursor.end - first : rows;
        }
        wait_for_copies<Rows::kStages - 1>();
        float value[VECS][kSize];
        float total = 0.f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            ring.read(turn, 0, v, value[v]);
            if constexpr (GATE) {
                float added[kSize], gate[kSize];
                ring.read(turn, 1, v, added);
                if (mod.gate)
                    load_shared_row<M, kSize>(
                        mod_row<M>(mod.gate, mod.gate_stride, cursor.group) + ring.column(v), gate);
#pragma unroll
                for (int i = 0; i < kSize; ++i)
                    value[v][i] = mod.gate ? fmaf(gate[i], added[i], value[v][i]) : value[v][i] + added[i];
                const uint4 stored = Pack<X>::pack(value[v]);
                ring.write(args.h, out, v, stored);
                Pack<X>::unpack(stored, value[v]);  // the statistics belong to the stored value
            }
#pragma unroll
            for (int i = 0; i < kSize; ++i) total += value[v][i];
        }
        float centre = 0.f;
        if (!args.rms) centre = kMerge ? warp_sum(total) * share : block_sum<kLanes>(total, sums[0]) * inverse;
        float squares = 0.f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                value[v][i] -= centre;
                squares = fmaf(value[v][i], value[v][i], squares);
            }
        }
        float mean = centre;
        if constexpr (!kMerge) {
            // Without the mean's barrier two rows' sums would meet in one buffer.
            squares = block_sum<kLanes>(squares, sums[args.rms ? turn % 2 : 1]);
        } else {
            squares = warp_sum(squares);
            float2 part;
            if constexpr (BLOCKS > 1) {
                part = exchange(turn, make_float2(centre, squares));
            } else {
                if (threadIdx.x % kWarp == 0) moments[turn % 2][warp] = make_float2(centre, squares);
                __syncthreads();
                part = other < warps ? moments[turn % 2][other] : make_float2(0.f, 0.f);
            }
            if (!args.rms) mean = warp_sum<kLanes>(part.x * others) * inverse;
            const float apart = part.x - mean;
            squares = warp_sum<kLanes>(fmaf(others * apart, apart, part.y));
        }
        const float rstd = rsqrtf(squares * inverse + args.eps);
        const float start = (centre - mean) * rstd;
        if (threadIdx.x == 0 && ring.leads()) {
            if (!args.rms) args.mean[first + turn] = mean;
            args.rstd[first + turn] = rstd;
        }
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
#pragma unroll
            for (int i = 0; i < kSize; ++i)
                value[v][i] = fmaf(fmaf(value[v][i], rstd, start), modulated.gain[v][i], modulated.offset[v][i]);
            ring.write(args.y, out, v, Pack<X>::pack(value[v]));
        }
        out += args.dim;
    }
}

// The saved statistics of the next rows, one row a lane: one load for kWarp rows, which then are a shuffle away.
struct LaneStatistics {
    float lane_mean = 0.f, lane_rstd = 0.f;

    __device__ __forceinline__ void load(const BackwardArgs& args, i64 row, int left) {
        const int lane = threadIdx.x % kWarp;
        if (lane >= left) return;
        lane_rstd = args.rstd[row + lane];
        if (!args.rms) lane_mean = args.mean[row + lane];
    }
    __device__ __forceinline__ float mean(int turn) const {
        return __shfl_sync(0xffffffffu, lane_mean, turn % kWarp);
    }
    __device__ __forceinline__ float rstd(int turn) const {
        return __shfl_sync(0xffffffffu, lane_rstd, turn % kWarp);
    }
};

// dx = rstd * (w - mean(w) - n * mean(w * n)) with w = dy * (1 + scale) * weight; RMS has no mean(w).
// TOKEN: every row has its own modulation, so its gradients leave with the row and only the affine sums are kept.
template <typename X, typename M, int VECS, bool GATE, bool TOKEN, int THREADS, int BLOCKS = 1>
__device__ __forceinline__ void backward(const BackwardArgs& args) {
    constexpr int kSize = Pack<X>::kSize;
    constexpr int kParts = GATE && !TOKEN ? 3 : 2;
    constexpr bool kHold = !GATE && !TOKEN;  // the gain stays in registers from row to row
    using Rows = Ring<X, VECS, GATE ? 4 : 2, BLOCKS>;
    REEL_DYNAMIC_SHARED(shared);
    __shared__ float2 sums[2][kWarp];
    REEL_SHARED(typename Exchange<BLOCKS>::Buffers, exchanged);
    const Rows ring{shared, args.dim};
    const Modulation& mod = args.modulation;
    const i64 block = blockIdx.x / BLOCKS, first = block * args.rows_per_cta;
    if (first >= args.rows) return;
    const int rows = args.rows - first < args.rows_per_cta ? args.rows - first : args.rows_per_cta;
    Stream<X> x(args.x, args.x_stride, first), dy_rows(args.dy, args.dy_stride, first);
    Stream<X> branch(args.branch, args.branch_stride, first), dh(args.dh, args.dh_stride, first);
    i64 out = first * args.dim;
    const auto fetch = [&](int turn) {
        if (turn < rows) {
            ring.copy(turn, 0, x);
            ring.copy(turn, 1, dy_rows);
            if constexpr (GATE) {
                ring.copy(turn, 2, branch);
                if (args.dh) ring.copy(turn, 3, dh);
            }
        }
        x.next(), dy_rows.next(), branch.next(), dh.next();
        commit_copies();
    };
    for (int turn = 0; turn < Rows::kStages - 1; ++turn) fetch(turn);
    const Exchange<BLOCKS> exchange(exchanged);

    Cursor cursor(args.groups, first);
    float kept[kParts][VECS][kSize];
    float held[kHold ? VECS : 1][kSize];
    // (1 + scale) * weight of the group, or without `weighted` just 1 + scale.
    const auto load_gain = [&](int v, float* gain, bool weighted) {
        load_shared_row<M, kSize>(mod_row<M>(mod.scale, mod.scale_stride, cursor.group) + ring.column(v), gain);
#pragma unroll
        for (int i = 0; i < kSize; ++i) gain[i] += 1.f;
        if (!weighted || !mod.weight) return;
        float weight[kSize];
        load_shared_row<M, kSize>(static_cast<const M*>(mod.weight) + ring.column(v), weight);
#pragma unroll
        for (int i = 0; i < kSize; ++i) gain[i] *= weight[i];
    };
    const auto start_group = [&]() {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int i = 0; i < kSize; ++i) kept[part][v][i] = 0.f;
            if constexpr (kHold) if (ring.holds(v)) load_gain(v, held[v], true);
        }
    };
    const auto end_group = [&]() {
        if (!args.partials) return;
        const i64 slot = block + (TOKEN ? 0 : cursor.group);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int v = 0; v < VECS; ++v)
                if (ring.holds(v))
                    store_row<float, kSize>(
                        args.partials + (slot * kParts + part) * args.dim + ring.column(v), kept[part][v]);
    };
    start_group();

    const float inverse = 1.f / args.dim;
    LaneStatistics statistics;
    for (int turn = 0; turn < rows; ++turn) {
        const i64 row = first + turn;
        fetch(turn + Rows::kStages - 1);
        if (turn % kWarp == 0) statistics.load(args, row, rows - turn);
        const float mean = statistics.mean(turn), rstd = statistics.rstd(turn);
        if (cursor.at_end(row)) {
            if constexpr (!TOKEN) end_group();
            cursor.move_to(row);
            if constexpr (!TOKEN) start_group();
        }
        wait_for_copies<Rows::kStages - 1>();
        float2 total = make_float2(0.f, 0.f);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            float n[kSize], dy[kSize], gain[kSize];
            ring.read(turn, 0, v, n);
            ring.read(turn, 1, v, dy);
#pragma unroll
            for (int i = 0; i < kSize; ++i) n[i] = (n[i] - mean) * rstd;
            if constexpr (!kHold) load_gain(v, gain, true);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                const float w = dy[i] * (kHold ? held[kHold ? v : 0][i] : gain[i]);
                total.x += w;
                total.y = fmaf(w, n[i], total.y);
            }
            if constexpr (TOKEN) {
                const i64 at = row * args.dim + ring.column(v);
                float affine[kSize];
                load_gain(v, gain, false);
#pragma unroll
                for (int i = 0; i < kSize; ++i) {
                    kept[0][v][i] = fmaf(dy[i] * gain[i], n[i], kept[0][v][i]);
                    kept[1][v][i] = fmaf(dy[i], gain[i], kept[1][v][i]);
                }
                if (mod.weight) {
                    load_shared_row<M, kSize>(static_cast<const M*>(mod.weight) + ring.column(v), affine);
#pragma unroll
                    for (int i = 0; i < kSize; ++i) n[i] *= affine[i];
                }
                if (mod.bias) {
                    load_shared_row<M, kSize>(static_cast<const M*>(mod.bias) + ring.column(v), affine);
#pragma unroll
                    for (int i = 0; i < kSize; ++i) n[i] += affine[i];
                }
#pragma unroll
                for (int i = 0; i < kSize; ++i) n[i] *= dy[i];
                store_row<M, kSize>(static_cast<M*>(args.dscale) + at, n);
                store_row<M, kSize>(static_cast<M*>(args.dshift) + at, dy);
            } else {
#pragma unroll
                for (int i = 0; i < kSize; ++i) {
                    kept[0][v][i] = fmaf(dy[i], n[i], kept[0][v][i]);
                    kept[1][v][i] += dy[i];
                }
            }
        }
        if constexpr (BLOCKS > 1) {
            total = exchange(turn, make_float2(warp_sum(total.x), warp_sum(total.y)));
            total = make_float2(warp_sum(total.x), warp_sum(total.y));
        } else {
            total = block_sum<warps_of(THREADS)>(total, sums[turn % 2]);
        }
        const float mean_w = args.rms ? 0.f : total.x * inverse, mean_wn = total.y * inverse;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            float n[kSize], dx[kSize], gain[kSize];
            ring.read(turn, 0, v, n);
            ring.read(turn, 1, v, dx);
            if constexpr (!kHold) load_gain(v, gain, true);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                n[i] = (n[i] - mean) * rstd;
                const float w = dx[i] * (kHold ? held[kHold ? v : 0][i] : gain[i]);
                dx[i] = rstd * (w - mean_w - n[i] * mean_wn);
            }
            if constexpr (GATE) {
                float other[kSize];
                if (args.dh) {
                    ring.read(turn, 3, v, other);
#pragma unroll
                    for (int i = 0; i < kSize; ++i) dx[i] += other[i];
                }
                ring.write(args.dx, out, v, Pack<X>::pack(dx));
                ring.read(turn, 2, v, other);
#pragma unroll
                for (int i = 0; i < kSize; ++i) {
                    if constexpr (TOKEN) other[i] *= dx[i];
                    else kept[kParts - 1][v][i] = fmaf(dx[i], other[i], kept[kParts - 1][v][i]);
                }
                if constexpr (TOKEN)
                    if (mod.gate)
                        store_row<M, kSize>(static_cast<M*>(args.dgate) + row * args.dim + ring.column(v), other);
                if (mod.gate) {
                    load_shared_row<M, kSize>(
                        mod_row<M>(mod.gate, mod.gate_stride, cursor.group) + ring.column(v), gain);
#pragma unroll
                    for (int i = 0; i < kSize; ++i) dx[i] *= gain[i];
                }
                ring.write(args.dbranch, out, v, Pack<X>::pack(dx));
            } else {
                ring.write(args.dx, out, v, Pack<X>::pack(dx));
            }
        }
        out += args.dim;
    }
    end_group();
}

// Second stage, grid (groups, tiles of columns): a block of 32 columns by kReduceLanes adds up a group's slots, lane l taking
// slots l, l + kReduceLanes, ... with the loads of some under way at once: it waits for memory and for nothing else.
template <typename M>
__device__ __forceinline__ void reduce(const ReduceArgs& args) {
    __shared__ float lanes[3][kReduceLanes][kWarp];
    const int column = blockIdx.y * kWarp + threadIdx.x, lane = threadIdx.y;
    const i64 group = blockIdx.x;
    const i64 begin = first_row(args.groups, group), end = first_row(args.groups, group + 1);
    float total[3] = {0.f, 0.f, 0.f};
    if (column < args.dim && begin < end) {
        const i64 from = begin / args.rows_per_cta + group, to = (end - 1) / args.rows_per_cta + group;
        for (i64 slot = from + lane; slot <= to; slot += kReduceAhead * kReduceLanes) {
            float value[kReduceAhead][3] = {};
#pragma unroll
            for (int next = 0; next < kReduceAhead; ++next)
#pragma unroll
                for (int part = 0; part < 3; ++part)
                    if (slot + next * kReduceLanes <= to && part < args.parts)
                        value[next][part] = args.partials[((slot + next * kReduceLanes) * args.parts + part) * args.dim + column];
#pragma unroll
            for (int next = 0; next < kReduceAhead; ++next)
#pragma unroll
                for (int part = 0; part < 3; ++part) total[part] += value[next][part];
        }
    }
#pragma unroll
    for (int part = 0; part < 3; ++part) lanes[part][lane][threadIdx.x] = total[part];
    __syncthreads();
    if (lane || column >= args.dim) return;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        total[part] = 0.f;
#pragma unroll
        for (int other = 0; other < kReduceLanes; ++other) total[part] += lanes[part][other][threadIdx.x];
    }
    if (args.sums) {
        args.sums[(group * 2) * args.dim + column] = total[0];
        args.sums[(group * 2 + 1) * args.dim + column] = total[1];
    }
    const M *weight = static_cast<const M*>(args.weight), *bias = static_cast<const M*>(args.bias);
    float dscale = weight ? total[0] * Pack<M>::to_float(weight[column]) : total[0];
    if (bias) dscale = fmaf(total[1], Pack<M>::to_float(bias[column]), dscale);
    const i64 at = group * args.dim + column;
    static_cast<M*>(args.dscale)[at] = Pack<M>::from_float(dscale);
    static_cast<M*>(args.dshift)[at] = Pack<M>::from_float(total[1]);
    if (args.dgate) static_cast<M*>(args.dgate)[at] = Pack<M>::from_float(total[2]);
}

// dweight = sum over groups of (1 + scale) * sum dy*n, dbias = ... * sum dy: neither needs a separate sum over rows.
template <typename M>
__device__ __forceinline__ void reduce_affine(const AffineArgs& args) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.dim) return;
    float dweight = 0.f, dbias = 0.f;
    for (i64 group = 0; group < args.groups; ++group) {
        const float gain = 1.f + Pack<M>::to_float(mod_row<M>(args.scale, args.scale_stride, group)[column]);
        dweight = fmaf(gain, args.sums[(group * 2) * args.dim + column], dweight);
        dbias = fmaf(gain, args.sums[(group * 2 + 1) * args.dim + column], dbias);
    }
    if (args.dweight) static_cast<M*>(args.dweight)[column] = Pack<M>::from_float(dweight);
    if (args.dbias) static_cast<M*>(args.dbias)[column] = Pack<M>::from_float(dbias);
}

}  // namespace reel
