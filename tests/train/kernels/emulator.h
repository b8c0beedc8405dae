// Runs the kernels on the processor, unchanged: g++ -x c++ -std=c++17 -include emulator.h <kernels>.cu
//
// A block's threads are fibers; barriers and shuffles hand the processor over. Between two barriers one warp after the
// other runs as far as it can, in shuffled order, and an asynchronous copy lands only when it is waited for: a missing
// barrier or wait shows as a wrong result. The ring starts as NaN. The blocks of a cluster run at once, each with shared
// memory of its own; what they send to each other arrives when none of them can go on. For arithmetic and indexing; it knows no speed.
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
#include <map>
#include <random>
#include <vector>

#undef __shared__
#define __shared__ static
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline
#define REEL_DYNAMIC_SHARED(name) uint4* name = emulated::dynamic_shared[emulated::rank()].data()
// Of each block of a cluster.
#define REEL_SHARED(Type, name) \
    static Type name##_of[emulated::kBlocks]; \
    Type& name = name##_of[emulated::rank()]
#define REEL_KERNEL(name, Args, bounds, ...) \
    extern "C" void name(const Args* args) { __VA_ARGS__(*args); }
#define REEL_CLUSTER_KERNEL(name, Args, blocks, bounds, ...)       \
    extern "C" void name(const Args* args) { __VA_ARGS__(*args); } \
    static const bool cluster_of_##name = emulated::enter_cluster(reinterpret_cast<const void*>(name), blocks);

namespace emulated {

struct Copy { uint4* to; const uint4* from; };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 << 10);
    enum { kReady, kWarp, kTeam, kBlock, kCluster, kArrivals, kDone } state = kReady;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<float> exchanged;
constexpr int kBlocks = 8;  // of a cluster, at most
inline std::vector<uint4> dynamic_shared[kBlocks];
inline std::map<const void*, int> clusters;
inline std::vector<std::function<bool()>> sent;
inline int current;
inline std::function<void()> body;
inline uint3 block_index, block_size;

inline bool enter_cluster(const void* kernel, int blocks) { return clusters.emplace(kernel, blocks).second; }
inline int block_threads() { return block_size.x * block_size.y; }
inline int rank() { return current / block_threads(); }
inline uint3 thread_index() {
    const unsigned inside = current % block_threads();
    return {inside % block_size.x, inside / block_size.x, 0};
}
inline uint3 own_block() { return {block_index.x + rank(), block_index.y, 0}; }
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

inline bool deliver(std::mt19937& random) {
    std::shuffle(sent.begin(), sent.end(), random);
    bool arrived = false, any = false;
    // No more than lets one wait end: what somebody goes on without comes as late as possible.
    for (bool ends = false; !ends && !sent.empty(); arrived = true) {
        const auto arrive = sent.back();
        sent.pop_back();
        ends = arrive();
    }
    for (Fiber& fiber : fibers)
        if (fiber.state == Fiber::kArrivals && arrived) fiber.state = Fiber::kReady, any = true;
    return any;
}
inline bool release_barriers(int threads, std::mt19937& random) {
    bool any = false;
    for (int from = 0; from < threads; from += block_size.x) any |= release(from, from + block_size.x, Fiber::kTeam);
    for (int from = 0; from < threads; from += block_threads()) any |= release(from, from + block_threads(), Fiber::kBlock);
    return any || release(0, threads, Fiber::kCluster) || deliver(random);
}

// One block, or the blocks of one cluster.
inline void run_blocks(std::mt19937& random) {
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
    } while (release_barriers(threads, random));
    for (const Fiber& fiber : fibers)
        if (fiber.state != Fiber::kDone) std::fputs("emulator: threads wait at different barriers\n", stderr), std::abort();
}

}  // namespace emulated

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::own_block())
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
inline int cluster_rank() { return emulated::rank(); }
inline void meet_cluster() { emulated::hand_over(emulated::Fiber::kCluster); }
// An mbarrier with one arrival a turn, and bytes that may come before they are expected.
struct Arrivals {
    int expected, bytes, turns;
    bool count() {
        if (!expected || bytes) return false;
        expected = 0, ++turns;
        return true;
    }
};
inline int warp_uniform(int value) { return value; }
inline void meet_team() { emulated::hand_over(emulated::Fiber::kTeam); }
inline void start_arrivals(Arrivals* arrivals) { *arrivals = {}; }
inline void expect_arrivals(Arrivals* arrivals, int bytes) {
    arrivals->expected = 1, arrivals->bytes += bytes;
    arrivals->count();
}
inline void wait_for_arrivals(Arrivals* arrivals, int parity) {
    while (arrivals->turns % 2 == parity) emulated::hand_over(emulated::Fiber::kArrivals);
}
struct Place {
    char* at;
    Place operator+(size_t bytes) const { return {at + bytes}; }
};
template <typename Buffers, typename T>
inline Place peer_place(Buffers& mine, T* inside, int rank) {
    return {reinterpret_cast<char*>(inside) + (rank - emulated::rank()) * sizeof(Buffers)};
}
inline void send(Place to, Place arrivals, float2 value) {
    emulated::sent.push_back([=] {
        std::memcpy(to.at, &value, sizeof(value));
        Arrivals* counted = reinterpret_cast<Arrivals*>(arrivals.at);
        counted->bytes -= sizeof(value);
        return counted->count();
    });
}
using Inside = char*;
inline Inside inside(uint4* at) { return reinterpret_cast<char*>(at); }
inline uint4 load_inside(Inside from) { return *reinterpret_cast<uint4*>(from); }
inline void copy_async(Inside to, const uint4* from) {
    emulated::fibers[emulated::current].open.push_back({reinterpret_cast<uint4*>(to), from});
}
inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }
inline void store_once(void* to, const uint4& value) { std::memcpy(to, &value, 16); }
inline void forget(uint4&) {}
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

// Blocks, or clusters, run one after the other, in shuffled order. `shared_bytes` is the dynamic shared memory.
extern "C" void emulate(void (*kernel)(const void*), const void* args, int grid_x, int grid_y, int block_x, int block_y,
                        int shared_bytes, unsigned seed) {
    using namespace emulated;
    std::mt19937 random(seed);
    const auto entered = clusters.find(reinterpret_cast<const void*>(kernel));
    const int cluster = entered == clusters.end() ? 1 : entered->second;
    block_size = {unsigned(block_x), unsigned(block_y), 1};
    fibers.clear();
    fibers.resize(cluster * block_x * block_y);
    exchanged.assign(fibers.size(), 0.f);
    if (grid_x % cluster) std::fputs("emulator: a grid of broken clusters\n", stderr), std::abort();
    body = [=] { kernel(args); };
    grid_x /= cluster;
    std::vector<int> blocks(grid_x * grid_y);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (int block : blocks) {
        block_index = {unsigned(block % grid_x * cluster), unsigned(block / grid_x), 0};
        for (int rank = 0; rank < cluster; ++rank) {
            dynamic_shared[rank].resize(shared_bytes / 16);
            std::memset(dynamic_shared[rank].data(), 0xff, shared_bytes);
        }
        run_blocks(random);
    }
}
