// The kernels of the library by their names. nvcc keeps the function it leaves in the host's code for a kernel out of
// sight of dlsym (since 13.0), so each kernel enters itself (REEL_KERNEL of device.cuh).
#pragma once
#include <string>
#include <unordered_map>

namespace reel {

inline std::unordered_map<std::string, const void*>& table() {
    static std::unordered_map<std::string, const void*> kernels;
    return kernels;
}

inline bool enter(const char* name, const void* kernel) { return table().emplace(name, kernel).second; }

}  // namespace reel
