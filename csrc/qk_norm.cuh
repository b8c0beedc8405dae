// RMS norm of queries and keys with their rotary embedding, forward and backward: one launch for both.
//
// A row is a token's heads: x [heads, width], heads `head` elements apart, so that a packed qkv or the gradients of
// attention are read where they lie. y = rotate(x * rstd * weight); the mean square is of each head (weight [width])
// or, ACROSS, of the row (weight [heads * width]). Statistics and sums are fp32; rstd is saved.
//
// A thread holds pairs of vectors of 16 bytes, one in each half of a head. A rotation of (i, i + width / 2) then is the
// thread's own, one of (2i, 2i + 1) the vector's own, and neighbours still read neighbouring vectors. `lanes` threads
// make a head: without ACROSS a power of two (some idle where the width is none), which add up by shuffles alone.
//
// A block owns `rows_per_cta` consecutive rows of q or of k and copies the next ones ahead into a ring in shared memory,
// where a thread reads only what it copied: no barrier. A thread's columns are the same in every row, so the weight and
// the sums of its gradient stay in registers; a block writes its sums once and a second kernel adds the blocks' up in
// one order. There are no atomics.
#pragma once
#include "device.cuh"

namespace reel {

// Where a block's rows begin in COUNT tensors, one after the other: equal in all threads, without a product a row.
template <int COUNT>
struct Walk {
    i64 at[COUNT], step[COUNT], wrap[COUNT];
    int token, tokens;

    __device__ __forceinline__ Walk(i64 row, i64 tokens) : token(row % tokens), tokens(tokens) {}
    __device__ __forceinline__ void add(int i, i64 row, i64 sample_stride, i64 token_stride) {
        at[i] = row / tokens * sample_stride + token * token_stride;
        step[i] = token_stride, wrap[i] = sample_stride - tokens * token_stride;
    }
    __device__ __forceinline__ void next() {
        const bool over = ++token == tokens;
        if (over) token = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] += step[i] + (over ? wrap[i] : 0);
    }
};

// The vectors of a thread: vector 2p and 2p + 1 are its pair p, in the lower and the upper half of one head.
template <typename X, int PAIRS, int STREAMS>
struct PairRing {
    static constexpr int kSize = Pack<X>::kSize;
    static constexpr int kVecs = 2 * PAIRS;
    static constexpr int kStages = stages<X, STREAMS>();
    uint4* slots;
    int width, heads, half;                // half: where upper vectors begin
    int head[PAIRS], lower[PAIRS];         // of the pair; the lower vector's column within the head
    bool held[kVecs];                      // an odd number of vectors leaves the last upper one out

    __device__ __forceinline__ PairRing(uint4* slots, int width, int heads, int lanes)
        : slots(slots), width(width), heads(heads), half((width / kSize + 1) / 2 * kSize) {
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const int place = p * blockDim.x + threadIdx.x;
            head[p] = place / lanes;
            lower[p] = place % lanes * kSize;
            held[2 * p] = head[p] < heads && lower[p] < half;
            held[2 * p + 1] = held[2 * p] && lower[p] + half < width;
        }
    }

    __device__ __forceinline__ int column(int v) const { return lower[v / 2] + v % 2 * half; }
    __device__ __forceinline__ uint4* slot(int turn, int stream, int v) const {
        return slots + ((static_cast<unsigned>(turn) % kStages * STREAMS + stream) * kVecs + v) * blockDim.x + threadIdx.x;
    }
    __device__ __forceinline__ void copy(int turn, int stream, const void* base, i64 row, i64 head_stride) const {
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const X* from = static_cast<const X*>(base) + (head[p] * head_stride + lower[p]) + row;
            if (held[2 * p]) copy_async(inside(slot(turn, stream, 2 * p)), reinterpret_cast<const uint4*>(from));
            if (held[2 * p + 1])
                copy_async(inside(slot(turn, stream, 2 * p + 1)), reinterpret_cast<const uint4*>(from + half));
        }
    }
    __device__ __forceinline__ void read(int turn, int stream, int v, float* out) const {
        if (held[v]) {
            Pack<X>::unpack(*slot(turn, stream, v), out);
        } else {
#pragma unroll
            for (int i = 0; i < kSize; ++i) out[i] = 0.f;
        }
    }
    __device__ __forceinline__ void write(void* base, i64 row, int p, const float* low, const float* high) const {
        X* to = static_cast<X*>(base) + (head[p] * width + lower[p]) + row;
        if (held[2 * p]) store_vector(to, Pack<X>::pack(low));
        if (held[2 * p + 1]) store_vector(to + half, Pack<X>::pack(high));
    }
};

// Turns a thread's pair of vectors by its token's angles: by minus the angles for SIGN -1.
template <int SIZE, int SIGN>
struct Rotation {
    float cos[SIZE], sin[SIZE];

    __device__ __forceinline__ static void load(const float* from, float* out) {
        if constexpr (SIZE == 8) {
            load_shared_row<float, 4>(from, out);
        } else {
            const float2 two = __ldg(reinterpret_cast<const float2*>(from));
            out[0] = two.x, out[1] = two.y;
        }
    }
    // Interleaved, the first half of what is loaded turns the lower vector, the rest the upper one, if that is held.
    template <typename Ring>
    __device__ __forceinline__ void load(const QkNormArgs& args, i64 at, const Ring& ring, int pair) {
        if (!args.cos || !ring.held[2 * pair]) return;
        const int lower = ring.column(2 * pair);
        const int upper = ring.held[2 * pair + 1] ? ring.column(2 * pair + 1) : lower;
        const int first = args.interleaved ? lower / 2 : lower;
        const int second = args.interleaved ? upper / 2 : lower + SIZE / 2;
        load(args.cos + at + first, cos), load(args.cos + at + second, cos + SIZE / 2);
        load(args.sin + at + first, sin), load(args.sin + at + second, sin + SIZE / 2);
    }
    __device__ __forceinline__ void turn(float& a, float& b, int i) const {
        const float before = a, s = SIGN * sin[i];
        a = before * cos[i] - b * s;
        b = before * s + b * cos[i];
    }
    template <typename Ring>
    __device__ __forceinline__ void apply(const QkNormArgs& args, const Ring& ring, int pair, float* lower,
                                          float* upper) const {
        if (!args.cos || !ring.held[2 * pair]) return;
        if (args.interleaved) {
#pragma unroll
            for (int i = 0; i < SIZE / 2; ++i) {
                turn(lower[2 * i], lower[2 * i + 1], i);
                turn(upper[2 * i], upper[2 * i + 1], SIZE / 2 + i);
            }
        } else {
#pragma unroll
            for (int i = 0; i < SIZE; ++i) turn(lower[i], upper[i], i);
        }
    }
};

// Sum over neighbouring lanes, a power of two of them; a butterfly, as `warp_sum`.
__device__ __forceinline__ float lane_sum(float value, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

// Sums that a thread's pairs belong to: each of its head, or ACROSS one of the row.
template <int PAIRS, bool ACROSS>
struct Norms {
    static constexpr int kCount = ACROSS ? 1 : PAIRS;
    float value[kCount] = {};

    __device__ __forceinline__ float& of(int p) { return value[p % kCount]; }
    __device__ __forceinline__ void add_up(int lanes, float* buffer) {
#pragma unroll
        for (int p = 0; p < kCount; ++p)
            value[p] = ACROSS ? block_sum(value[p], buffer) : lane_sum(value[p], lanes);
    }
};

// A thread's part of the weight; without ACROSS its pairs lie at the same columns of different heads.
template <typename X, int PAIRS, bool ACROSS>
struct Columns {
    static constexpr int kSize = Pack<X>::kSize;
    static constexpr int kVecs = ACROSS ? 2 * PAIRS : 2;
    float value[kVecs][kSize];

    __device__ __forceinline__ float* of(int v) { return value[v % kVecs]; }
    template <typename Ring>
    __device__ __forceinline__ static i64 at(const Ring& ring, int v) {
        return (ACROSS ? ring.head[v / 2] * ring.width : 0) + ring.column(v);
    }
    __device__ __forceinline__ void fill(float with) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v)
#pragma unroll
            for (int i = 0; i < kSize; ++i) value[v][i] = with;
    }
    template <typename M, typename Ring>
    __device__ __forceinline__ void load(const Ring& ring, const M* weight) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v)
            if (ring.held[v]) load_shared_row<M, kSize>(weight + at(ring, v), value[v]);
    }
    template <typename Ring>
    __device__ __forceinline__ void load(const Ring& ring, const void* weight, bool in_float) {
        fill(1.f);
        if (weight && in_float) load(ring, static_cast<const float*>(weight));
        else if (weight) load(ring, static_cast<const X*>(weight));
    }
};

template <typename X, int PAIRS, bool ACROSS>
__device__ __forceinline__ void qk_forward(const QkNormArgs& args) {
    constexpr int kSize = Pack<X>::kSize, kVecs = 2 * PAIRS;
    using Rows = PairRing<X, PAIRS, 1>;
    REEL_DYNAMIC_SHARED(shared);
    __shared__ float sums[2][kWarp];
    const bool keys = blockIdx.x >= args.q_blocks;
    const Heads& side = args.side[keys];
    const i64 block = blockIdx.x - (keys ? args.q_blocks : 0);
    const Rows ring(shared, args.width, side.heads, args.lanes);
    const i64 first = block * args.rows_per_cta;
    const int rows = side.rows - first < args.rows_per_cta ? side.rows - first : args.rows_per_cta;
    Walk<1> ahead(first, side.tokens);
    ahead.add(0, first, side.x_strides.sample, side.x_strides.token);
    const auto fetch = [&](int turn) {
        if (turn < rows) ring.copy(turn, 0, side.x, ahead.at[0], side.x_strides.head);
        ahead.next();
        commit_copies();
    };
    for (int turn = 0; turn < Rows::kStages - 1; ++turn) fetch(turn);
    Columns<X, PAIRS, ACROSS> weight;
    weight.load(ring, side.weight, args.float_weights);
    const float inverse = 1.f / (ACROSS ? side.heads * args.width : args.width);
    Walk<1> angles(first, side.tokens);
    angles.add(0, first, args.rotation_sample, args.rotation_token);
    float* statistics = side.rstd + first * (ACROSS ? 1 : side.heads);
    const int columns = side.heads * args.width;
    i64 out = first * columns;
    for (int turn = 0; turn < rows; ++turn, angles.next(), out += columns) {
        fetch(turn + Rows::kStages - 1);
        // Asked for early: it comes while the row is waited for and summed.
        Rotation<kSize, 1> rotation;
        rotation.load(args, angles.at[0], ring, 0);
        wait_for_copies<Rows::kStages - 1>();
        float value[kVecs][kSize];
        Norms<PAIRS, ACROSS> squares;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
            ring.read(turn, 0, v, value[v]);
#pragma unroll
            for (int i = 0; i < kSize; ++i) squares.of(v / 2) = fmaf(value[v][i], value[v][i], squares.of(v / 2));
        }
        squares.add_up(args.lanes, sums[turn % 2]);
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const float rstd = rsqrtf(squares.of(p) * inverse + args.eps);
            if constexpr (ACROSS) {
                if (threadIdx.x == 0 && p == 0) statistics[turn] = rstd;
            } else {
                if (ring.held[2 * p] && ring.column(2 * p) == 0) statistics[turn * side.heads + ring.head[p]] = rstd;
            }
#pragma unroll
            for (int v = 2 * p; v < 2 * p + 2; ++v)
#pragma unroll
                for (int i = 0; i < kSize; ++i) value[v][i] *= rstd * weight.of(v)[i];
            rotation.apply(args, ring, p, value[2 * p], value[2 * p + 1]);
            if (p + 1 < PAIRS) rotation.load(args, angles.at[0], ring, p + 1);
            ring.write(side.y, out, p, value[2 * p], value[2 * p + 1]);
        }
    }
}

// dx = rstd * (w - n * mean(w * n)) with n = x * rstd, w = dn * weight and dn = dy turned back; dweight = sum dn * n.
template <typename X, int PAIRS, bool ACROSS>
__device__ __forceinline__ void qk_backward(const QkNormArgs& args) {
    constexpr int kSize = Pack<X>::kSize, kVecs = 2 * PAIRS;
    using Rows = PairRing<X, PAIRS, 2>;
    REEL_DYNAMIC_SHARED(shared);
    __shared__ float sums[2][kWarp];
    const bool keys = blockIdx.x >= args.q_blocks;
    const Heads& side = args.side[keys];
    const i64 block = blockIdx.x - (keys ? args.q_blocks : 0);
    const Rows ring(shared, args.width, side.heads, args.lanes);
    const i64 first = block * args.rows_per_cta;
    const int rows = side.rows - first < args.rows_per_cta ? side.rows - first : args.rows_per_cta;
    Walk<2> ahead(first, side.tokens);
    ahead.add(0, first, side.x_strides.sample, side.x_strides.token);
    ahead.add(1, first, side.dy_strides.sample, side.dy_strides.token);
    const auto fetch = [&](int turn) {
        if (turn < rows) {
            ring.copy(turn, 0, side.x, ahead.at[0], side.x_strides.head);
            ring.copy(turn, 1, side.dy, ahead.at[1], side.dy_strides.head);
        }
        ahead.next();
        commit_copies();
    };
    for (int turn = 0; turn < Rows::kStages - 1; ++turn) fetch(turn);
    Columns<X, PAIRS, ACROSS> weight, kept;
    weight.load(ring, side.weight, args.float_weights);
    kept.fill(0.f);
    const float* statistics = side.rstd + first * (ACROSS ? 1 : side.heads);
    const auto load_rstd = [&](int turn) {
        Norms<PAIRS, ACROSS> rstd;
#pragma unroll
        for (int p = 0; p < rstd.kCount; ++p)
            if (ACROSS || ring.held[2 * p]) rstd.of(p) = statistics[ACROSS ? turn : turn * side.heads + ring.head[p]];
        return rstd;
    };
    Norms<PAIRS, ACROSS> next = load_rstd(0);
    const float inverse = 1.f / (ACROSS ? side.heads * args.width : args.width);
    Walk<1> angles(first, side.tokens);
    angles.add(0, first, args.rotation_sample, args.rotation_token);
    const int columns = side.heads * args.width;
    i64 out = first * columns;
    for (int turn = 0; turn < rows; ++turn, angles.next(), out += columns) {
        fetch(turn + Rows::kStages - 1);
        Norms<PAIRS, ACROSS> rstd = next, total;
        if (turn + 1 < rows) next = load_rstd(turn + 1);
        float w[kVecs][kSize];
        Rotation<kSize, -1> rotation;
        rotation.load(args, angles.at[0], ring, 0);
        wait_for_copies<Rows::kStages - 1>();
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            ring.read(turn, 1, 2 * p, w[2 * p]);
            ring.read(turn, 1, 2 * p + 1, w[2 * p + 1]);
            rotation.apply(args, ring, p, w[2 * p], w[2 * p + 1]);
            if (p + 1 < PAIRS) rotation.load(args, angles.at[0], ring, p + 1);
#pragma unroll
            for (int v = 2 * p; v < 2 * p + 2; ++v) {
                float n[kSize];
                ring.read(turn, 0, v, n);
#pragma unroll
                for (int i = 0; i < kSize; ++i) {
                    n[i] *= rstd.of(p);
                    kept.of(v)[i] = fmaf(w[v][i], n[i], kept.of(v)[i]);
                    w[v][i] *= weight.of(v)[i];
                    total.of(p) = fmaf(w[v][i], n[i], total.of(p));
                }
            }
        }
        total.add_up(args.lanes, sums[turn % 2]);
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const float along = rstd.of(p) * rstd.of(p) * (total.of(p) * inverse);  // of x, not of n
#pragma unroll
            for (int v = 2 * p; v < 2 * p + 2; ++v) {
                float x_again[kSize];
                ring.read(turn, 0, v, x_again);
#pragma unroll
                for (int i = 0; i < kSize; ++i) w[v][i] = rstd.of(p) * w[v][i] - x_again[i] * along;
            }
            ring.write(side.y, out, p, w[2 * p], w[2 * p + 1]);
        }
    }
    if (!side.partials) return;
    if constexpr (ACROSS) {
        float* sum = side.partials + block * side.heads * args.width;
#pragma unroll
        for (int v = 0; v < kVecs; ++v)
            if (ring.held[v]) store_row<float, kSize>(sum + kept.at(ring, v), kept.of(v));
    } else {
        // The heads of a warp by shuffles, then the warps in their order.
        float* lines = reinterpret_cast<float*>(shared);
        __syncthreads();
#pragma unroll
        for (int v = 0; v < 2; ++v) {
#pragma unroll
            for (int i = 0; i < kSize; ++i)
                for (int mask = args.lanes; mask < kWarp; mask *= 2)
                    kept.of(v)[i] += __shfl_xor_sync(0xffffffffu, kept.of(v)[i], mask);
            if (threadIdx.x % kWarp < args.lanes && ring.column(v) < (v ? args.width : ring.half))
                store_row<float, kSize>(lines + threadIdx.x / kWarp * args.width + ring.column(v), kept.of(v));
        }
        __syncthreads();
        for (int column = threadIdx.x; column < args.width; column += blockDim.x) {
            float sum = 0.f;
            for (int warp = 0; warp < blockDim.x / kWarp; ++warp) sum += lines[warp * args.width + column];
            side.partials[block * args.width + column] = sum;
        }
    }
}

// Second stage, grid (2, tiles of columns): a block adds the blocks' sums up.
template <typename M>
__device__ __forceinline__ void qk_norm_weights(const QkReduceArgs& args) {
    const int which = blockIdx.x, columns = args.columns[which], column = blockIdx.y * blockDim.x + threadIdx.x;
    if (!args.dweight[which]) return;
    float total[1];
    add_slots(args.partials[which], args.blocks[which], 1, columns, column, total);
    if (threadIdx.y || column >= columns) return;
    static_cast<M*>(args.dweight[which])[column] = Pack<M>::from_float(total[0]);
}

}  // namespace reel
