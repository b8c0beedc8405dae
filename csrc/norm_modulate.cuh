// Norm and modulation, forward and backward, with or without the gated residual in front.
//
// Rows: x_ND, one row per token. LN: n = (x - mean) * rstd; RMS: n = x * rstd. Then, with the optional affine
// weight and bias, y = (n * weight + bias) * (1 + scale) + shift, computed as n * gain + offset with a group's gain and
// offset in registers. With the gate: x = round(residual + gate * branch).
// Statistics and sums are fp32 always; the saved rstd (and mean, for LN) are 8 bytes a row.
//
// Thread t of T holds the 16-byte vectors t, t + T, ... of its row.
//
// Forward: a block has a row or two in registers. Backward: it owns `rows_per_cta` consecutive rows, whose sums it
// gathers. Its teams, blockDim.y of blockDim.x threads, take rows in turn, each at its own pace and through a ring of its own in shared
// memory: a thread copies its own vectors ahead and reads back only what it copied itself, so the ring needs no barrier.
//
// Sums over rows (dscale, dshift, dgate) are gathered in registers while the rows pass. For each group that a block meets, its
// teams' sums are added up in order and written: block c, group g to slot c + g of `partials`. Blocks and groups both follow the rows, so c + g
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

    __device__ __forceinline__ Stream(const void* base, i64 stride, i64 row, int by)
        : at(const_cast<X*>(static_cast<const X*>(base)) + row * stride), step(stride * by) {}
    __device__ __forceinline__ void next() { at += step; }
};

// Where BLOCKS of a cluster share a row, each has a part of its columns, equal but for the last.
template <typename X, int VECS, int STREAMS, int BLOCKS = 1>
struct Ring {
    static constexpr int kStages = stages<X, STREAMS>();
    static constexpr int kVectors = kStages * STREAMS * VECS;  // of a thread
    Inside own;  // the first vector of this thread
    int dim;
    int begin = 0, count = dim / Pack<X>::kSize;  // first vector and number of vectors of this block

    __device__ __forceinline__ Ring(uint4* slots, int dim) : own(inside(slots + threadIdx.x)), dim(dim) {
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
    // Where a thread has its vector `number` of the row at `stage`; rows take the stages in turn, from `own` on.
    static __device__ __forceinline__ Inside vector(Inside stage, int number) { return stage + number * kVectorBytes * blockDim.x; }
    __device__ __forceinline__ Inside after(Inside stage) const {
        return stage == vector(own, kVectors - STREAMS * VECS) ? own : vector(stage, STREAMS * VECS);
    }
    __device__ __forceinline__ void copy(Inside stage, int stream, const Stream<X>& from) const {
#pragma unroll
        for (int v = 0; v < VECS; ++v)
            if (holds(v)) copy_async(vector(stage, stream * VECS + v), reinterpret_cast<const uint4*>(from.at) + begin + place(v));
    }
    __device__ __forceinline__ void read(Inside stage, int stream, int v, float* out) const {
        Pack<X>::unpack(load_inside(vector(stage, stream * VECS + v)), out);
    }
    // `row`: elements before the row, of a contiguous tensor.
    __device__ __forceinline__ void write(void* base, i64 row, int v, const uint4& value) const {
        X* to = static_cast<X*>(base) + row + column(v);
        // In a cluster lines that leave first made it 4 % slower on an H200; elsewhere 2 to 3 % faster.
        if constexpr (BLOCKS > 1) store_vector(to, value);
        else store_once(to, value);
    }
};

// What a group's modulation makes of a vector of columns, with the affine weight and bias in it: y = n * gain + offset.
template <typename M, int SIZE>
__device__ __forceinline__ void load_modulation(
        const Modulation& mod, i64 group, int column, float (&gain)[SIZE], float (&offset)[SIZE]) {
    constexpr int kPack = Pack<M>::kSize;
    load_shared_row<M, SIZE>(mod_row<M>(mod.scale, mod.scale_stride, group) + column, gain);
    load_shared_row<M, SIZE>(mod_row<M>(mod.shift, mod.shift_stride, group) + column, offset);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) gain[i] += 1.f;
    float affine[kPack];
    if (mod.bias) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i) {
            if (i % kPack == 0) load_shared_row<M, kPack>(static_cast<const M*>(mod.bias) + column + i, affine);
            offset[i] = fmaf(affine[i % kPack], gain[i], offset[i]);
        }
    }
    if (mod.weight) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i) {
            if (i % kPack == 0) load_shared_row<M, kPack>(static_cast<const M*>(mod.weight) + column + i, affine);
            gain[i] *= affine[i % kPack];
        }
    }
}

// A block has kForwardRows rows, with a gate one, and ends: the device gives blocks to whichever multiprocessor is free, and some
// are a tenth slower than others. All vectors of the rows are asked for at once and stay packed in registers; each pass
// unpacks them anew, since their floats would take the registers of every second block. Rows together load the
// modulation once, which costs L1 as much as two rows of bfloat16.
template <typename X, typename M, int VECS, bool GATE, int THREADS>
__device__ __forceinline__ void forward(const ForwardArgs& args) {
    constexpr int kSize = Pack<X>::kSize, kLanes = warps_of(THREADS), kRows = GATE ? 1 : kForwardRows;
    static_assert(kLanes <= kWarp && kRows <= 2, "a warp adds up one part a lane, and rows are of two groups at most");
    __shared__ float sums[2][kRows][kLanes];
    const Modulation& mod = args.modulation;
    const int vectors = args.dim / kSize;
    const auto holds = [&](int v) { return v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x) < vectors; };
    const auto column = [&](int v) { return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kSize; };
    const i64 first = static_cast<i64>(blockIdx.x) * kRows;
    const int left = args.rows - first < kRows ? args.rows - first : kRows;
    const auto row = [&](int r) { return first + (r < left ? r : left - 1); };  // behind the last row it comes again
    uint4 held[kRows][VECS], added[GATE ? VECS : 1];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!holds(v)) continue;
            held[r][v] = load_once(static_cast<const X*>(args.x) + row(r) * args.x_stride + column(v));
            if constexpr (GATE)
                added[v] = load_once(static_cast<const X*>(args.branch) + row(r) * args.branch_stride + column(v));
        }
    }
    const i64 group = group_of(args.groups, first);
    const bool apart = kRows > 1 && first + left > first_row(args.groups, group + 1);  // the rows are of two groups

    const float inverse = 1.f / args.dim;
    float mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        mean[r] = 0.f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!holds(v)) continue;
            float value[kSize];
            forget(held[r][v]);
            Pack<X>::unpack(held[r][v], value);
            if constexpr (GATE) {
                forget(added[v]);
                float branch[kSize], gate[kSize];
                Pack<X>::unpack(added[v], branch);
                if (mod.gate) load_shared_row<M, kSize>(mod_row<M>(mod.gate, mod.gate_stride, group) + column(v), gate);
#pragma unroll
                for (int i = 0; i < kSize; ++i)
                    value[i] = mod.gate ? fmaf(gate[i], branch[i], value[i]) : value[i] + branch[i];
                held[r][v] = Pack<X>::pack(value);
                store_once(static_cast<X*>(args.h) + first * args.dim + column(v), held[r][v]);
                Pack<X>::unpack(held[r][v], value);  // the statistics belong to the stored value
            }
#pragma unroll
            for (int i = 0; i < kSize; i += 4) mean[r] += (value[i] + value[i + 1]) + (value[i + 2] + value[i + 3]);
        }
    }
    if (!args.rms) block_sums<kLanes>(mean, sums[0]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        mean[r] = args.rms ? 0.f : mean[r] * inverse;
        rstd[r] = 0.f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!holds(v)) continue;
            float value[kSize];
            forget(held[r][v]);
            Pack<X>::unpack(held[r][v], value);
#pragma unroll
            for (int i = 0; i < kSize; ++i) rstd[r] = fmaf(value[i] - mean[r], value[i] - mean[r], rstd[r]);
        }
    }
    block_sums<kLanes>(rstd, sums[1]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        rstd[r] = rsqrtf(rstd[r] * inverse + args.eps);
        if (threadIdx.x == 0 && r < left) {
            if (!args.rms) args.mean[first + r] = mean[r];
            args.rstd[first + r] = rstd[r];
        }
    }
    X* y = static_cast<X*>(args.y) + first * args.dim;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        if (!holds(v)) continue;
        float gain[kSize], offset[kSize];
        load_modulation<M>(mod, group, column(v), gain, offset);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (r > 0 && apart) load_modulation<M>(mod, group_of(args.groups, row(r)), column(v), gain, offset);
            float value[kSize];
            forget(held[r][v]);
            Pack<X>::unpack(held[r][v], value);
#pragma unroll
            for (int i = 0; i < kSize; ++i) value[i] = fmaf((value[i] - mean[r]) * rstd[r], gain[i], offset[i]);
            if (r < left) store_once(y + r * args.dim + column(v), Pack<X>::pack(value));
        }
    }
}

// The saved statistics of the next rows, `by` apart, one row a lane: one load for kWarp rows, which then are a shuffle away.
struct LaneStatistics {
    float lane_mean = 0.f, lane_rstd = 0.f;

    __device__ __forceinline__ void load(const BackwardArgs& args, i64 row, int left, int by) {
        const int lane = threadIdx.x % kWarp;
        if (lane >= left) return;
        lane_rstd = args.rstd[row + lane * by];
        if (!args.rms) lane_mean = args.mean[row + lane * by];
    }
    __device__ __forceinline__ float mean(int turn) const {
        return __shfl_sync(0xffffffffu, lane_mean, turn % kWarp);
    }
    __device__ __forceinline__ float rstd(int turn) const {
        return __shfl_sync(0xffffffffu, lane_rstd, turn % kWarp);
    }
};

// dx = rstd * (w - mean(w) - n * mean(w * n)) with w = dy * (1 + scale) * weight and n = (x - mean) * rstd; RMS has no mean(w).
// TOKEN: every row has its own modulation, so its gradients leave with the row and only the affine sums are kept.
// ALONE: a block has one team.
template <typename X, typename M, int VECS, bool GATE, bool TOKEN, int THREADS, bool ALONE, int BLOCKS = 1>
__device__ __forceinline__ void backward(const BackwardArgs& args) {
    constexpr int kSize = Pack<X>::kSize;
    constexpr int kParts = GATE && !TOKEN ? 3 : 2;
    constexpr bool kHold = !GATE && !TOKEN;  // the gain stays in registers from row to row
    using Rows = Ring<X, VECS, GATE ? 4 : 2, BLOCKS>;
    REEL_DYNAMIC_SHARED(shared);
    __shared__ float2 sums[2][kWarp];
    REEL_SHARED(typename Exchange<BLOCKS>::Buffers, exchanged);
    const int teams = ALONE ? 1 : blockDim.y, team = ALONE ? 0 : warp_uniform(threadIdx.y);
    const Rows ring{shared + team * Rows::kVectors * static_cast<int>(blockDim.x), args.dim};
    const Modulation& mod = args.modulation;
    const i64 block = blockIdx.x / BLOCKS, begin = block * args.rows_per_cta, first = begin + team;
    if (begin >= args.rows) return;
    const i64 end = args.rows - begin < args.rows_per_cta ? args.rows : begin + args.rows_per_cta;
    const int rows = first < end ? (static_cast<int>(end - first) + teams - 1) / teams : 0;  // of this team
    Stream<X> x(args.x, args.x_stride, first, teams), dy_rows(args.dy, args.dy_stride, first, teams);
    Stream<X> branch(args.branch, args.branch_stride, first, teams), dh(args.dh, args.dh_stride, first, teams);
    i64 out = first * args.dim;
    Inside filled = ring.own, stage = ring.own;
    const auto fetch = [&](int turn) {
        if (turn < rows) {
            ring.copy(filled, 0, x);
            ring.copy(filled, 1, dy_rows);
            if constexpr (GATE) {
                ring.copy(filled, 2, branch);
                if (args.dh) ring.copy(filled, 3, dh);
            }
        }
        filled = ring.after(filled);
        x.next(), dy_rows.next(), branch.next(), dh.next();
        commit_copies();
    };
    for (int turn = 0; turn < Rows::kStages - 1; ++turn) fetch(turn);
    const Exchange<BLOCKS> exchange(exchanged);

    Cursor cursor(args.groups, TOKEN ? first : begin);  // all teams of a block go through the same groups
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
    // Each team adds its sums to those of the teams before it; the last one has them all.
    float* const added = reinterpret_cast<float*>(shared + teams * Rows::kVectors * static_cast<int>(blockDim.x));
    const auto end_group = [&]() {
        if (!args.partials) return;
        float* const slot = args.partials + (block + (TOKEN ? 0 : cursor.group)) * kParts * args.dim;
        for (int turn = 0; turn < teams; ++turn) {
            float* const to = turn == teams - 1 ? slot : added;
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int v = 0; v < VECS; ++v) {
                    if (turn != team || !ring.holds(v)) continue;
                    const int at = part * args.dim + ring.column(v);
                    if (turn > 0) add_row<kSize>(added + at, kept[part][v]);
                    store_row<float, kSize>(to + at, kept[part][v]);
                }
            if (teams > 1) __syncthreads();
        }
    };
    const auto next_group = [&](i64 row) {
        if constexpr (!TOKEN) end_group();
        cursor.move_to(row);
        if constexpr (!TOKEN) start_group();
    };
    start_group();

    const float inverse = 1.f / args.dim;
    LaneStatistics statistics;
    for (int turn = 0; turn < rows; ++turn) {
        const i64 row = first + turn * teams;
        fetch(turn + Rows::kStages - 1);
        if (turn % kWarp == 0) statistics.load(args, row, rows - turn, teams);
        const float mean = statistics.mean(turn), rstd = statistics.rstd(turn);
        while (cursor.end <= row) next_group(TOKEN ? row : cursor.end);
        wait_for_copies<Rows::kStages - 1>();
        float2 total = make_float2(0.f, 0.f);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            float n[kSize], dy[kSize], gain[kSize];
            ring.read(stage, 0, v, n);
            ring.read(stage, 1, v, dy);
            if constexpr (!kHold) load_gain(v, gain, true);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                const float factor = kHold ? held[kHold ? v : 0][i] : gain[i];
                n[i] -= mean;
                total.x = fmaf(dy[i], factor, total.x);
                total.y = fmaf(dy[i] * n[i], factor, total.y);  // over rstd
            }
            if constexpr (TOKEN) {
#pragma unroll
                for (int i = 0; i < kSize; ++i) n[i] *= rstd;
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
                    kept[0][v][i] = fmaf(dy[i] * n[i], rstd, kept[0][v][i]);
                    kept[1][v][i] += dy[i];
                }
            }
        }
        if constexpr (BLOCKS > 1) {
            total = exchange(turn, make_float2(warp_sum(total.x), warp_sum(total.y)));
            total = make_float2(warp_sum(total.x), warp_sum(total.y));
        } else {
            total = team_sum<warps_of(THREADS)>(total, sums[turn % 2]);
        }
        // dx = rstd * w - (to_w + to_x * (x - mean))
        const float to_w = args.rms ? 0.f : total.x * inverse * rstd, to_x = total.y * inverse * rstd * rstd * rstd;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!ring.holds(v)) continue;
            float n[kSize], dx[kSize], gain[kSize];
            ring.read(stage, 0, v, n);
            ring.read(stage, 1, v, dx);
            if constexpr (!kHold) load_gain(v, gain, true);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                const float w = dx[i] * (kHold ? held[kHold ? v : 0][i] : gain[i]);
                dx[i] = fmaf(w, rstd, -fmaf(n[i] - mean, to_x, to_w));
            }
            if constexpr (GATE) {
                float other[kSize];
                if (args.dh) {
                    ring.read(stage, 3, v, other);
#pragma unroll
                    for (int i = 0; i < kSize; ++i) dx[i] += other[i];
                }
                ring.write(args.dx, out, v, Pack<X>::pack(dx));
                ring.read(stage, 2, v, other);
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
        out += teams * static_cast<i64>(args.dim);
        stage = ring.after(stage);
    }
    if constexpr (!TOKEN)
        while (cursor.end < end) next_group(cursor.end);  // where other teams have rows
    end_group();
}

// Second stage, grid (groups, tiles of columns): a block adds up a group's slots.
template <typename M>
__device__ __forceinline__ void reduce(const ReduceArgs& args) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const i64 group = blockIdx.x;
    const i64 begin = first_row(args.groups, group), end = first_row(args.groups, group + 1);
    const i64 from = begin / args.rows_per_cta + group, to = (end - 1) / args.rows_per_cta + group;
    float total[3];
    add_slots(args.partials + from * args.parts * args.dim, begin < end ? to - from + 1 : 0, args.parts, args.dim, column, total);
    if (threadIdx.y || column >= args.dim) return;
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
