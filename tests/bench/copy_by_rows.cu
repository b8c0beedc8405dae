// How rows are best dealt to blocks: a copy of rows of bfloat16, with one sum over the block for each row.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 tests/bench/copy_by_rows.cu -o copy_by_rows && ./copy_by_rows
//
// Prints GB/s, read and written, for 32,768 and 8,192 rows of 1,536 and 5,120 numbers: what docs/benchmarks/kernels.md says
// of the forward. Three buffers of each size or more take turns, so that none is found in the L2 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int kVecs = 2, kStages = 4;  // vectors of 16 bytes a thread; rows of the ring

struct Rows {
    const uint4* from;
    uint4* to;
    int rows, vectors, per_block;
};

void ok(cudaError_t code) {
    if (code != cudaSuccess) std::printf("%s\n", cudaGetErrorString(code)), std::exit(1);
}

__device__ float added(uint4 v) {
    return __uint_as_float(v.x << 16) + __uint_as_float(v.y << 16) + __uint_as_float(v.z << 16) + __uint_as_float(v.w << 16);
}

__device__ float block_sum(float value, float* buffer) {
    for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += buffer[warp];
    return sum;
}

// A ring in shared memory. IN_TURN: block b has rows b, b + blocks, ...; else per_block rows that follow each other.
template <bool IN_TURN>
__global__ void __launch_bounds__(320) ring(const Rows a) {
    extern __shared__ uint4 slots[];
    __shared__ float sums[2][32];
    const int first = IN_TURN ? blockIdx.x : blockIdx.x * a.per_block, step = IN_TURN ? gridDim.x : 1;
    const int left = a.rows - first;
    const int count = left <= 0 ? 0 : IN_TURN ? (left - 1) / step + 1 : min(a.per_block, left);
    const auto fetch = [&](int turn) {
        for (int v = 0; v < kVecs; ++v) {
            const int place = v * blockDim.x + threadIdx.x;
            if (turn < count && place < a.vectors) {
                const unsigned to = __cvta_generic_to_shared(slots + turn % kStages * kVecs * blockDim.x + place);
                const uint4* from = a.from + size_t(first + turn * step) * a.vectors + place;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int turn = 0; turn < kStages - 1; ++turn) fetch(turn);
    for (int turn = 0; turn < count; ++turn) {
        fetch(turn + kStages - 1);
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
        uint4 held[kVecs];
        float sum = 0.f;
        for (int v = 0; v < kVecs; ++v)
            if (v * blockDim.x + threadIdx.x < a.vectors)
                held[v] = slots[(turn % kStages * kVecs + v) * blockDim.x + threadIdx.x], sum += added(held[v]);
        const bool odd = block_sum(sum, sums[turn % 2]) == 123.456f;  // keeps the sum
        for (int v = 0; v < kVecs; ++v)
            if (v * blockDim.x + threadIdx.x < a.vectors)
                held[v].x ^= odd, a.to[size_t(first + turn * step) * a.vectors + v * blockDim.x + threadIdx.x] = held[v];
    }
}

// A block for each row, in registers.
__global__ void row_by_block(const Rows a) {
    __shared__ float sums[32];
    const size_t at = size_t(blockIdx.x) * a.vectors;
    uint4 held[kVecs];
    float sum = 0.f;
    for (int v = 0; v < kVecs; ++v)
        if (v * blockDim.x + threadIdx.x < a.vectors) held[v] = a.from[at + v * blockDim.x + threadIdx.x], sum += added(held[v]);
    const bool odd = block_sum(sum, sums) == 123.456f;
    for (int v = 0; v < kVecs; ++v)
        if (v * blockDim.x + threadIdx.x < a.vectors) held[v].x ^= odd, a.to[at + v * blockDim.x + threadIdx.x] = held[v];
}

template <typename Launch>
void measure(const char* what, const std::vector<Rows>& sets, cudaStream_t stream, Launch launch) {
    constexpr int kCalls = 12;
    cudaGraph_t graph;
    cudaGraphExec_t made;
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < kCalls; ++call) launch(sets[call % sets.size()]);
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&made, graph, 0));
    cudaEvent_t begin, end;
    ok(cudaEventCreate(&begin)), ok(cudaEventCreate(&end));
    std::vector<float> times(9);
    for (float& ms : times) {
        ok(cudaEventRecord(begin, stream)), ok(cudaGraphLaunch(made, stream)), ok(cudaEventRecord(end, stream));
        ok(cudaEventSynchronize(end)), ok(cudaEventElapsedTime(&ms, begin, end));
    }
    std::sort(times.begin(), times.end());
    const double bytes = 2. * sets[0].rows * sets[0].vectors * 16;
    std::printf("%6d x %d  %-44s %.0f GB/s\n", sets[0].rows, sets[0].vectors * 8, what, bytes * kCalls / times[4] / 1e6);
    ok(cudaGraphExecDestroy(made)), ok(cudaGraphDestroy(graph));
}

int main() {
    cudaDeviceProp device;
    ok(cudaGetDeviceProperties(&device, 0));
    cudaStream_t stream;
    ok(cudaStreamCreate(&stream));
    std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
    for (int dim : {1536, 5120})
        for (int rows : {32768, 8192}) {
            const int vectors = dim / 8, threads = (vectors + 32 * kVecs - 1) / (32 * kVecs) * 32;
            const size_t bytes = size_t(rows) * vectors * 16, shared = size_t(kStages) * kVecs * threads * 16;
            std::vector<Rows> sets(std::max<size_t>(3, 200'000'000 / bytes + 1));
            for (Rows& set : sets) {
                void *from, *to;
                ok(cudaMalloc(&from, bytes)), ok(cudaMalloc(&to, bytes)), ok(cudaMemset(from, 1, bytes));
                set = {static_cast<uint4*>(from), static_cast<uint4*>(to), rows, vectors, 0};
            }
            const int fitting = (threads <= 128 ? 5 : 2) * device.multiProcessorCount, share = (rows + fitting - 1) / fitting;
            for (int per_block : {share, 32, 16, 8, 4, 2}) {
                if (per_block > share) continue;
                char what[64];
                std::snprintf(what, sizeof(what), per_block == share ? "blocks that fit, %d rows each" : "blocks of %d rows", per_block);
                measure(what, sets, stream, [&](Rows set) {
                    set.per_block = per_block;
                    ring<false><<<(rows + per_block - 1) / per_block, threads, shared, stream>>>(set);
                });
            }
            measure("blocks that fit, rows in turn", sets, stream,
                    [&](const Rows& set) { ring<true><<<fitting, threads, shared, stream>>>(set); });
            measure("a block for each row, in registers", sets, stream,
                    [&](const Rows& set) { row_by_block<<<rows, threads, 0, stream>>>(set); });
            for (Rows& set : sets) ok(cudaFree(const_cast<uint4*>(set.from))), ok(cudaFree(set.to));
        }
}
