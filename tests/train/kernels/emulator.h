// Runs the kernels on the processor, unchanged: g++ -x c++ -std=c++17 -include emulator.h <kernels>.cu
//
// A block's threads are fibers; barriers and shuffles hand the processor over. Between two barriers one warp after the
// other runs as far as it can, in shuffled order, and an asynchronous copy lands only when it is waited for: a missing
// barrier or wait shows as a wrong result. The ring starts as NaN. For arithmetic and indexing; it knows no speed.
#pragma once
#define REEL_EMULATED
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#undef __shared__
#define __shared__ static
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline
#define REEL_DYNAMIC_SHARED(name) uint4* name = reinterpret_cast<uint4*>(emulated::dynamic_shared.data())
#define REEL_KERNEL(name, Args, bounds, ...) \
    extern "C" void name(const Args* args) { __VA_ARGS__(*args); }

namespace emulated {

struct Copy { uint4* to; const uint4* from; };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 << 10);
    enum { kReady, kWarp, kBlock, kDone } state = kReady;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<float> exchanged;
inline std::vector<uint4> dynamic_shared;
inline int current;
inline std::function<void()> body;
inline uint3 block_index, block_size;

inline uint3 thread_index() {
    return {unsigned(current) % block_size.x, unsigned(current) / block_size.x, 0};
}
inline void hand_over(decltype(Fiber::state) state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}
inline void enter() {
    body();
    hand_over(Fiber::kDone);
}
// Releases the fibers [from, to) once all that still run wait for `state`.
inline bool release(int from, int to, decltype(Fiber::state) state) {
    int waiting = 0;
    for (int i = from; i < to; ++i) {
        if (fibers[i].state == Fiber::kDone) continue;
        if (fibers[i].state != state) return false;
        ++waiting;
    }
    for (int i = from; i < to; ++i)
        if (fibers[i].state == state) fibers[i].state = Fiber::kReady;
    return waiting > 0;
}

inline void run_block(std::mt19937& random) {
    const int threads = fibers.size();
    for (Fiber& fiber : fibers) {
        fiber.state = Fiber::kReady;
        fiber.groups.clear(), fiber.open.clear();
        getcontext(&fiber.context);
        fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    std::vector<int> warps((threads + 31) / 32), lanes(32);
    for (size_t i = 0; i < warps.size(); ++i) warps[i] = i;
    for (int i = 0; i < 32; ++i) lanes[i] = i;
    do {
        std::shuffle(warps.begin(), warps.end(), random);
        for (int warp : warps) {
            const int from = warp * 32, to = std::min(from + 32, threads);
            std::shuffle(lanes.begin(), lanes.end(), random);
            do {
                for (int lane : lanes)
                    if (from + lane < to && fibers[from + lane].state == Fiber::kReady)
                        current = from + lane, swapcontext(&scheduler, &fibers[current].context);
            } while (release(from, to, Fiber::kWarp));
        }
    } while (release(0, threads, Fiber::kBlock));
    for (const Fiber& fiber : fibers)
        if (fiber.state != Fiber::kDone) std::fputs("emulator: threads wait at different barriers\n", stderr), std::abort();
}

}  // namespace emulated

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)

inline void __syncthreads() { emulated::hand_over(emulated::Fiber::kBlock); }

inline float __shfl_xor_sync(unsigned, float value, int mask) {
    using namespace emulated;
    exchanged[current] = value;
    hand_over(Fiber::kWarp);
    const float other = exchanged[current ^ mask];
    hand_over(Fiber::kWarp);
    return other;
}

inline float __shfl_sync(unsigned, float value, int lane) {
    using namespace emulated;
    exchanged[current] = value;
    hand_over(Fiber::kWarp);
    const float other = exchanged[current / 32 * 32 + lane];
    hand_over(Fiber::kWarp);
    return other;
}

template <typename T>
inline T __ldg(const T* from) { return *from; }
inline float rsqrtf(float value) { return 1.f / std::sqrt(value); }

namespace reel {
inline void copy_async(uint4* to, const uint4* from) { emulated::fibers[emulated::current].open.push_back({to, from}); }
inline void store_vector(void* to, const uint4& value) { std::memcpy(to, &value, 16); }
inline void commit_copies() {
    emulated::Fiber& fiber = emulated::fibers[emulated::current];
    fiber.groups.push_back(std::move(fiber.open));
    fiber.open.clear();
}
template <int PENDING>
inline void wait_for_copies() {
    auto& groups = emulated::fibers[emulated::current].groups;
    while (groups.size() > PENDING) {
        for (const emulated::Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}
}  // namespace reel

// Blocks run one after the other, in shuffled order. `shared_bytes` is the dynamic shared memory.
extern "C" void emulate(void (*kernel)(const void*), const void* args, int grid_x, int grid_y, int block_x, int block_y,
                        int shared_bytes, unsigned seed) {
    using namespace emulated;
    std::mt19937 random(seed);
    block_size = {unsigned(block_x), unsigned(block_y), 1};
    fibers.clear();
    fibers.resize(block_x * block_y);
    exchanged.assign(block_x * block_y, 0.f);
    body = [=] { kernel(args); };
    std::vector<int> blocks(grid_x * grid_y);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (int block : blocks) {
        block_index = {unsigned(block % grid_x), unsigned(block / grid_x), 0};
        dynamic_shared.resize(shared_bytes / 16);
        std::memset(dynamic_shared.data(), 0xff, shared_bytes);
        run_block(random);
    }
}
