// A CUDA driver of one device whose kernels are emulated: it has the signatures of cuda.h, and refuses what the real one
// would. Kernels come from libraries of emulator.h, but only those whose name the loaded cubin has too.
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

#include <string>
#include <vector>

#undef cuCtxPopCurrent
#undef cuCtxPushCurrent

typedef void (*Emulate)(void (*)(const void*), const void*, int, int, int, int, int, unsigned);

struct CUctx_st { int device; };
struct CUmod_st { std::string image; };
struct CUfunc_st { void (*kernel)(const void*); Emulate emulate; int shared; };

static CUctx_st primary;
static thread_local std::vector<CUcontext> contexts;
static std::vector<void*> libraries;
static CUstream the_stream = reinterpret_cast<CUstream>(0x700000001234);

static CUresult with_context(CUresult result) { return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : result; }

extern "C" {
void stub_kernels_from(const char* path) { libraries.push_back(dlopen(path, RTLD_NOW)); }

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 3; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = &primary, CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (context != &primary) return CUDA_ERROR_INVALID_CONTEXT;
    contexts.push_back(context);
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    const char* bytes = static_cast<const char*>(image);
    if (memcmp(bytes, "\x7f" "ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    size_t sections;
    unsigned short entry, count;
    memcpy(&sections, bytes + 0x28, 8), memcpy(&entry, bytes + 0x3a, 2), memcpy(&count, bytes + 0x3c, 2);
    *module = new CUmod_st{std::string(bytes, sections + entry * count)};
    return with_context(CUDA_SUCCESS);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    if (module->image.find(std::string(1, '\0') + name + '\0') == std::string::npos) return CUDA_ERROR_NOT_FOUND;
    for (void* library : libraries)
        if (void* kernel = dlsym(library, name)) {
            *function = new CUfunc_st{reinterpret_cast<void (*)(const void*)>(kernel),
                                      reinterpret_cast<Emulate>(dlsym(library, "emulate")), (48 << 10) - 528};  // the largest static one
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    function->shared = value;
    return with_context(CUDA_SUCCESS);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared) {
    *blocks = shared <= size_t(function->shared) && threads <= 1024 ? 2 : 0;
    return with_context(CUDA_SUCCESS);
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
    if (config->numAttrs || config->gridDimX * config->gridDimY * config->gridDimZ > 8) return CUDA_ERROR_INVALID_VALUE;
    *clusters = config->sharedMemBytes <= unsigned(function->shared) && config->blockDimX <= 1024 ? 2 : 0;
    return with_context(CUDA_SUCCESS);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
    if (config->hStream != the_stream) return CUDA_ERROR_INVALID_HANDLE;
    if (extra || config->numAttrs || config->gridDimZ != 1 || config->blockDimZ != 1 || !config->gridDimX || !config->gridDimY ||
        config->sharedMemBytes > unsigned(function->shared))
        return CUDA_ERROR_INVALID_VALUE;
    function->emulate(function->kernel, params[0], config->gridDimX, config->gridDimY, config->blockDimX, config->blockDimY,
                      config->sharedMemBytes, 0);
    return with_context(CUDA_SUCCESS);
}
CUresult cuGetErrorString(CUresult code, const char** text) {
    *text = code == CUDA_ERROR_NOT_FOUND ? "named symbol not found" : "refused";
    return CUDA_SUCCESS;
}
}
