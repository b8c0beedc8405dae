// Turns an error code of torch's stable ABI into an exception, with every supported PyTorch.
#pragma once
#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/shim_utils.h>

// The first, of torch 2.13, adds the message of the error itself.
#ifdef STABLE_TORCH_ERROR_CODE_CHECK
#define REEL_TORCH_CHECK(call) STABLE_TORCH_ERROR_CODE_CHECK(call)
#else
#define REEL_TORCH_CHECK(call) TORCH_ERROR_CODE_CHECK(call)
#endif
