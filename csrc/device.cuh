// Shared by the kernels: 16-byte packs, asynchronous copies, fixed-order sums, groups of rows.
//
// Compiled by nvcc, by NVRTC (hence no header of the C++ library) and, with tests/train/kernels/emulator.h in front, by
// g++ for a run on the processor.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "args.h"
#include "rules.h"

namespace reel {

// Sixteen bytes of T as fp32 and back. Rounding is to nearest even.
template <typename T>
struct Pack;

template <>
struct Pack<float> {
    static constexpr int kSize = 4;
    static __device__ __forceinline__ void unpack(const uint4& raw, float* out) {
        const float4 value = *reinterpret_cast<const float4*>(&raw);
        out[0] = value.x, out[1] = value.y, out[2] = value.z, out[3] = value.w;
    }
    static __device__ __forceinline__ uint4 pack(const float* in) {
        float4 value = make_float4(in[0], in[1], in[2], in[3]);
        return *reinterpret_cast<uint4*>(&value);
    }
    static __device__ __forceinline__ float to_float(float value) { return value; }
    static __device__ __forceinline__ float from_float(float value) { return value; }
};

template <>
struct Pack<__nv_bfloat16> {
    static constexpr int kSize = 8;
    static __device__ __forceinline__ void unpack(const uint4& raw, float* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
        // One register less, which the backward of qk_norm cannot spare on sm_80.
        const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = __bfloat1622float2(pairs[i]);
            out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
        }
#else
        // A bfloat16 is the upper half of a float: one instruction for either half of a word.
        const unsigned* words = reinterpret_cast<const unsigned*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned low = words[i] << 16, high = words[i] & 0xffff0000u;
            out[2 * i] = reinterpret_cast<const float&>(low), out[2 * i + 1] = reinterpret_cast<const float&>(high);
        }
#endif
    }
    static __device__ __forceinline__ uint4 pack(const float* in) {
        uint4 raw;
        __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
        return raw;
    }
    static __device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __device__ __forceinline__ __nv_bfloat16 from_float(float value) { return __float2bfloat16_rn(value); }
};

template <>
struct Pack<__half> {
    static constexpr int kSize = 8;
    static __device__ __forceinline__ void unpack(const uint4& raw, float* out) {
        const __half2* pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = __half22float2(pairs[i]);
            out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
        }
    }
    static __device__ __forceinline__ uint4 pack(const float* in) {
        uint4 raw;
        __half2* pairs = reinterpret_cast<__half2*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
        return raw;
    }
    static __device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
    static __device__ __forceinline__ __half from_float(float value) { return __float2half_rn(value); }
};

// `COUNT` neighbours of a small vector many rows share (16-byte aligned), through the read-only cache.
template <typename T, int COUNT>
__device__ __forceinline__ void load_shared_row(const T* from, float* out) {
    constexpr int kSize = Pack<T>::kSize;
#pragma unroll
    for (int i = 0; i < COUNT / kSize; ++i)
        Pack<T>::unpack(__ldg(reinterpret_cast<const uint4*>(from) + i), out + i * kSize);
}

template <typename T, int COUNT>
__device__ __forceinline__ void store_row(T* to, const float* in) {
    constexpr int kSize = Pack<T>::kSize;
#pragma unroll
    for (int i = 0; i < COUNT / kSize; ++i) reinterpret_cast<uint4*>(to)[i] = Pack<T>::pack(in + i * kSize);
}

// Adds COUNT numbers of shared memory to those of a thread.
template <int COUNT>
__device__ __forceinline__ void add_row(const float* from, float* to) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 value = *reinterpret_cast<const float4*>(from + i);
        to[i] += value.x, to[i + 1] += value.y, to[i + 2] += value.z, to[i + 3] += value.w;
    }
}

#ifndef REEL_EMULATED
#define REEL_DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
#define REEL_SHARED(Type, name) __shared__ Type name
#define REEL_KERNEL(name, Args, bounds, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Args args) { __VA_ARGS__(args); }
// Older architectures have the name alone: the host side launches it on none of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define REEL_CLUSTER_KERNEL(name, Args, blocks, bounds, ...)                                                             \
    extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__ bounds name(                           \
        const __grid_constant__ Args args) { __VA_ARGS__(args); }
#else
#define REEL_CLUSTER_KERNEL(name, Args, blocks, bounds, ...)                                                             \
    extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Args args) {}
#endif

// This block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster. Once a kernel: its fences reach to the whole device.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Counts the bytes that arrive in this block's shared memory (an mbarrier).
using Arrivals = unsigned long long;

__device__ __forceinline__ unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void start_arrivals(Arrivals* arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(
                     shared_address(arrivals))
                 : "memory");
}

__device__ __forceinline__ void expect_arrivals(Arrivals* arrivals, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrivals)), "r"(bytes)
                 : "memory");
}

// Waits until all expected bytes of a turn, whose parity is given, are there.
__device__ __forceinline__ void wait_for_arrivals(Arrivals* arrivals, int parity) {
    asm volatile(
        "{\n.reg .pred there;\nagain: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;\n}" ::"r"(shared_address(arrivals)), "r"(parity)
        : "memory");
}

// A place in the buffers of another block of the cluster: that of `inside` in this one's.
using Place = unsigned;
template <typename Buffers, typename T>
__device__ __forceinline__ Place peer_place(Buffers&, T* inside, int rank) {
    Place there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(inside)), "r"(rank));
    return there;
}

// Two numbers on their way to another block, which counts them as they arrive; nobody waits here.
__device__ __forceinline__ void send(Place to, Place arrivals, float2 value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(value.x), "f"(value.y), "r"(arrivals)
                 : "memory");
}

// A place in this block's shared memory, in bytes: half the registers of a pointer.
using Inside = unsigned;
__device__ __forceinline__ Inside inside(uint4* at) { return shared_address(at); }

__device__ __forceinline__ uint4 load_inside(Inside from) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from));
    return value;
}

__device__ __forceinline__ void copy_async(Inside to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// One instruction; for an assignment the compiler may emit four.
__device__ __forceinline__ void store_vector(void* to, const uint4& value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// A number that is the same in all lanes of a warp, so that the compiler keeps it, and what follows from it, in uniform registers.
__device__ __forceinline__ int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Waits for the threads of this team, those of one threadIdx.y. __syncthreads() is barrier 0.
__device__ __forceinline__ void meet_team() {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
}

// Vectors that are read, or written, once: the first to leave the caches.
__device__ __forceinline__ uint4 load_once(const void* from) { return __ldcs(static_cast<const uint4*>(from)); }
__device__ __forceinline__ void store_once(void* to, const uint4& value) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// Lets the compiler forget what it has unpacked of a vector: it would keep the floats, in twice the registers.
__device__ __forceinline__ void forget(uint4& vector) {
    asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
}

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

// Rows of a ring.
template <typename X, int STREAMS>
__device__ constexpr int stages() {
    return sizeof(X) * STREAMS > kNarrowBytes ? kShallowRing : sizeof(X) * STREAMS > kThinBytes ? kDeepRing : kThinRing;
}

// Sum over LANES neighbours. Butterfly: every lane ends with the same bits, since a + b and b + a are the same float.
template <int LANES = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

// The least power of two that is not below the warps of a block of `threads`.
__device__ constexpr int warps_of(int threads) {
    int lanes = 1;
    while (lanes * kWarp < threads) lanes *= 2;
    return lanes;
}

// Sum over a block of up to LANES warps, in one order always. A buffer may be reused once the block has met at another
// barrier.
template <int LANES = kWarp>
__device__ __forceinline__ float block_sum(float value, float* buffer) {
    const int lane = threadIdx.x % kWarp;
    value = warp_sum(value);
    if (lane == 0) buffer[threadIdx.x / kWarp] = value;
    __syncthreads();
    return warp_sum<LANES>(lane % LANES < blockDim.x / kWarp ? buffer[lane % LANES] : 0.f);
}

// As `block_sum`, over a team. `buffer` has a place for each warp of the block.
template <int LANES = kWarp>
__device__ __forceinline__ float2 team_sum(float2 value, float2* buffer) {
    const int lane = threadIdx.x % kWarp;
    buffer += threadIdx.y * (blockDim.x / kWarp);
    value.x = warp_sum(value.x), value.y = warp_sum(value.y);
    if (lane == 0) buffer[threadIdx.x / kWarp] = value;
    meet_team();
    const float2 part = lane % LANES < blockDim.x / kWarp ? buffer[lane % LANES] : make_float2(0.f, 0.f);
    return make_float2(warp_sum<LANES>(part.x), warp_sum<LANES>(part.y));
}

// As `block_sum`, of several values at one barrier.
template <int LANES, int COUNT>
__device__ __forceinline__ void block_sums(float (&values)[COUNT], float (&buffers)[COUNT][LANES]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        values[i] = warp_sum(values[i]);
        if (lane == 0) buffers[i][threadIdx.x / kWarp] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        values[i] = warp_sum<LANES>(lane % LANES < blockDim.x / kWarp ? buffers[i][lane % LANES] : 0.f);
}

// Sums of slots [0, count) of `slots` [count, parts, dim] at a column, by a block of columns by lanes: lane l takes slots l,
// l + lanes, ... with the loads of some under way at once, then lanes are added up in one order. The first lane has them.
template <int PARTS>
__device__ __forceinline__ void add_slots(const float* slots, i64 count, int parts, int dim, int column, float (&total)[PARTS]) {
    __shared__ float warps[PARTS][kReduceThreads / kWarp][kWarp];
    const int columns = blockDim.x, lanes = blockDim.y;
    const int thread = threadIdx.y * columns + threadIdx.x, warp = thread / kWarp;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) total[part] = 0.f;
    if (column < dim)
        for (i64 slot = threadIdx.y; slot < count; slot += kReduceAhead * lanes) {
            float value[kReduceAhead][PARTS] = {};
#pragma unroll
            for (int next = 0; next < kReduceAhead; ++next)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    if (slot + next * lanes < count && part < parts)
                        value[next][part] = slots[((slot + next * lanes) * parts + part) * dim + column];
#pragma unroll
            for (int next = 0; next < kReduceAhead; ++next)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) total[part] += value[next][part];
        }
    const auto over_lanes = [&](float& value) {
        for (int mask = columns; mask < kWarp; mask *= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
    };
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        over_lanes(total[part]);
        if (thread % kWarp < columns) warps[part][warp][threadIdx.x] = total[part];
    }
    __syncthreads();
    if (warp) return;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        total[part] = 0.f;
        for (int other = threadIdx.y; other < columns * lanes / kWarp; other += kWarp / columns)
            total[part] += warps[part][other][threadIdx.x];
        over_lanes(total[part]);
    }
}

// What the warps of a row have found, in each of BLOCKS blocks that hold a part of the row: the part of each warp, one a
// lane. Rows take turns in two buffers: a block sends its next row's parts only once it has this row's, so nothing that
// is still read is overwritten.
template <int BLOCKS>
struct Exchange {
    struct Buffers {
        float2 parts[2][kWarp];
        Arrivals arrivals[2];
    };
    Buffers& mine;
    const int all;             // warps of all blocks
    Place to, to_arrivals;     // where a lane sends to: lane l to block l

    __device__ __forceinline__ explicit Exchange(Buffers& mine) : mine(mine), all(BLOCKS * (blockDim.x / kWarp)) {
        const int to_rank = threadIdx.x % kWarp % BLOCKS, slot = cluster_rank() * (blockDim.x / kWarp) + threadIdx.x / kWarp;
        to = peer_place(mine, &mine.parts[0][slot], to_rank);
        to_arrivals = peer_place(mine, &mine.arrivals[0], to_rank);
        if (threadIdx.x == 0)
            for (int buffer = 0; buffer < 2; ++buffer) start_arrivals(&mine.arrivals[buffer]);
        meet_cluster();  // no block may be sent to before it counts
    }
    // `part` is the same in all lanes of the warp.
    __device__ __forceinline__ float2 operator()(int turn, float2 part) const {
        const int buffer = turn % 2, lane = threadIdx.x % kWarp;
        if (threadIdx.x == 0) expect_arrivals(&mine.arrivals[buffer], all * sizeof(float2));
        if (lane < BLOCKS) send(to + buffer * sizeof(mine.parts[0]), to_arrivals + buffer * sizeof(Arrivals), part);
        wait_for_arrivals(&mine.arrivals[buffer], turn / 2 % 2);
        return lane < all ? mine.parts[buffer][lane] : make_float2(0.f, 0.f);
    }
};

// One block has the whole row, and nobody to exchange with.
template <>
struct Exchange<1> {
    struct Buffers {};
    __device__ __forceinline__ explicit Exchange(Buffers&) {}
};

__device__ __forceinline__ i64 first_row(const Groups& groups, i64 group) {
    if (!groups.offsets) return group * groups.rows_per_group;
    if (group == groups.count) return groups.rows;
    const i64 row = groups.offsets[group];
    return row < 0 ? 0 : row < groups.rows ? row : groups.rows;
}

__device__ __forceinline__ i64 group_of(const Groups& groups, i64 row) {
    if (groups.count == 1) return 0;
    // A division of 64 bits takes some hundred instructions, and rows are seldom that many.
    if (!groups.offsets)
        return (row | groups.rows_per_group) >> 32 ? row / groups.rows_per_group
                                                   : static_cast<unsigned>(row) / static_cast<unsigned>(groups.rows_per_group);
    i64 low = 0, high = groups.count;  // first_row(low) <= row < first_row(high)
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (groups.offsets[middle] <= row) low = middle; else high = middle;
    }
    return low;
}

// The group of a row that only moves forward.
struct Cursor {
    const Groups& groups;
    i64 group, end;

    __device__ __forceinline__ Cursor(const Groups& groups, i64 row)
        : groups(groups), group(group_of(groups, row)), end(first_row(groups, group + 1)) {}
    __device__ __forceinline__ void move_to(i64 row) {
        while (row >= end) end = first_row(groups, ++group + 1);
    }
};

}  // namespace reel
