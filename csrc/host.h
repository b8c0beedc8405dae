// Shared by the host code of the operators: tensors of torch's stable ABI, and the names of the library.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "torch_check.h"

#ifdef REEL_EMULATED
#define REEL_NAMESPACE reelweave_emulated
#define REEL_DEVICE CPU
#else
#define REEL_NAMESPACE reelweave_library
#define REEL_DEVICE CUDA
#endif
// torch's macros paste their arguments literally; these expand the names first.
#define REEL_LIBRARY_FRAGMENT(name, m) STABLE_TORCH_LIBRARY_FRAGMENT(name, m)
#define REEL_LIBRARY_IMPL(name, device, m) STABLE_TORCH_LIBRARY_IMPL(name, device, m)

namespace reel {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Maybe = std::optional<Tensor>;
using Shape = std::vector<int64_t>;

struct Type {
    const char* name;
    int bytes;
};

inline Type type_of(ScalarType dtype) {
    switch (dtype) {
        case ScalarType::Float: return {"f32", 4};
        case ScalarType::BFloat16: return {"bf16", 2};
        case ScalarType::Half: return {"f16", 2};
        default: throw std::runtime_error("reelweave: the kernels take float32, bfloat16 and float16 only");
    }
}

inline Tensor empty(const Shape& shape, ScalarType dtype, const Tensor& like) {
    Shape strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
    int32_t device_type, device_index;
    REEL_TORCH_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
    REEL_TORCH_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
    const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
    AtenTensorHandle made;
    REEL_TORCH_CHECK(aoti_torch_empty_strided(
        shape.size(), shape.data(), strides.data(), code, device_type, device_index, &made));
    return Tensor(made);
}

inline Shape shape_of(const Tensor& tensor) {
    const auto sizes = tensor.sizes();
    return Shape(sizes.begin(), sizes.end());
}

inline Tensor as(const Tensor& tensor, ScalarType dtype) {
    return tensor.scalar_type() == dtype ? tensor : torch::stable::to(tensor, dtype);
}

template <typename T = void>
T* pointer(const Maybe& tensor) {
    return tensor ? static_cast<T*>(tensor->data_ptr()) : nullptr;
}

// A kernel could not follow their pointers.
inline void check_device(const Tensor& x, std::initializer_list<Maybe> others) {
    for (const Maybe& other : others)
        if (other && !(other->device() == x.device()))
            throw std::runtime_error("reelweave: all tensors must be on one device");
}

}  // namespace reel
