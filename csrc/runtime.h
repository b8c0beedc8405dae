// Launches a kernel of this library, known by its name, on torch's current stream. With REEL_EMULATED a function of the
// tests takes the place of a GPU.
#pragma once
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#ifndef REEL_EMULATED
#include <cuda_runtime_api.h>

#include "table.h"
#endif

#include "args.h"
#include "rules.h"
#include "torch_check.h"

namespace reel {

struct Block {
    int x = 1, y = 1;
};

#ifdef REEL_EMULATED

extern "C" {
inline void (*reel_emulate)(const char* kernel, const void* args, int grid_x, int grid_y, int block_x, int block_y, int shared);
inline int reel_resident = 5;
inline int reel_shared_limit = 227 << 10;
inline bool reel_clusters = true;
}

class Runtime {
public:
    explicit Runtime(int) {}
    int shared_limit() const { return reel_shared_limit; }
    bool clusters() const { return reel_clusters; }
    int resident(const std::string&, int, int, int = 1) const { return reel_resident; }
    void launch(const std::string& kernel, const void* args, i64 grid_x, i64 grid_y, Block block, int shared = 0) const {
        reel_emulate(kernel.c_str(), args, int(grid_x), int(grid_y), block.x, block.y, shared);
    }
};

#else

inline void check(cudaError_t code, const std::string& what) {
    if (code == cudaSuccess) return;
    cudaGetLastError();  // or the next call of anybody would report it again
    throw std::runtime_error("reelweave: " + what + " failed: " + cudaGetErrorString(code));
}

// A value queried once per process; `ask` may run twice if two threads are first at the same time.
template <typename Value, typename Ask>
Value remembered(const std::string& key, Ask ask) {
    static std::mutex mutex;
    static std::unordered_map<std::string, Value> values;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = values.find(key);
        if (found != values.end()) return found->second;
    }
    const Value value = ask();
    const std::lock_guard<std::mutex> lock(mutex);
    return values.emplace(key, value).first->second;
}

inline const void* find(const std::string& kernel) {
    const auto found = table().find(kernel);
    if (found == table().end()) throw std::runtime_error("reelweave: this library has no kernel " + kernel);
    return found->second;
}

// One device, current for as long as this lives.
class __attribute__((visibility("hidden"))) Runtime {
public:
    explicit Runtime(int device) : device_(device), guard_(device) {
        REEL_TORCH_CHECK(aoti_torch_get_current_cuda_stream(device, &stream_));
    }

    // Beside the kernels' own shared memory, which counts towards the limit too.
    int shared_limit() const {
        return attribute("shared", cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticBytes;
    }

    // True if blocks may form clusters.
    bool clusters() const { return attribute("major", cudaDevAttrComputeCapabilityMajor) >= kClusterOldest; }

    // Clusters of `cluster` blocks that fit the device at once.
    int resident(const std::string& kernel, int threads, int shared, int cluster = 1) const {
        const std::string key = kernel + '/' + std::to_string(device_) + '/' + std::to_string(threads);
        return remembered<int>(key, [&] {
            const void* function = find(kernel);
            if (shared > kUnaskedBytes - kStaticBytes)  // the limit, not these bytes: another width shall not take them back
                check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit()), kernel);
            int blocks = 0;
            if (cluster > 1) {
                cudaLaunchConfig_t config{};  // the kernel itself names the cluster
                config.gridDim = dim3(cluster), config.blockDim = dim3(threads), config.dynamicSmemBytes = shared;
                check(cudaOccupancyMaxActiveClusters(&blocks, function, &config), kernel);
                if (!blocks) throw std::runtime_error("reelweave: no cluster of " + kernel + " fits the device");
                return blocks;
            }
            check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, shared), kernel);
            if (!blocks) throw std::runtime_error("reelweave: " + kernel + " does not fit a multiprocessor");
            return blocks * attribute("multiprocessors", cudaDevAttrMultiProcessorCount);
        });
    }

    void launch(const std::string& kernel, const void* args, i64 grid_x, i64 grid_y, Block block, int shared = 0) const {
        void* arguments[] = {const_cast<void*>(args)};
        check(cudaLaunchKernel(find(kernel), dim3(grid_x, grid_y), dim3(block.x, block.y), arguments, shared,
                               static_cast<cudaStream_t>(stream_)),
              kernel);
    }

private:
    int attribute(const char* name, cudaDeviceAttr which) const {
        return remembered<int>(name + std::to_string(device_), [&] {
            int value = 0;
            check(cudaDeviceGetAttribute(&value, which, device_), name);
            return value;
        });
    }

    int device_;
    torch::stable::accelerator::DeviceGuard guard_;
    void* stream_ = nullptr;
};

#endif

}  // namespace reel
