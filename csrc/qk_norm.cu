// q, k = rotate(rms_norm(q) * weight_q), rotate(rms_norm(k) * weight_k), and the second stage of their weights' gradients.
#include "qk_norm.cuh"

// No block has more than 512 threads. The larger bounds say how many registers a thread may have, 72 and 96, so that the
// smaller blocks of most models fit an SM several times; a backward of fp32 would spill then, and has 128.
#define REEL_QK_KIND(kind, ACROSS, x, X)                                                                              \
    REEL_KERNEL(qk_norm_forward_##kind##_##x, reel::QkNormArgs, (896, 1),                                            \
                reel::qk_forward<X, 8 / reel::Pack<X>::kSize, ACROSS>)                                               \
    REEL_KERNEL(qk_norm_backward_##kind##_##x, reel::QkNormArgs, (sizeof(X) == 4 ? 512 : 640, 1),                    \
                reel::qk_backward<X, 8 / reel::Pack<X>::kSize, ACROSS>)

#define REEL_QK_TYPE(x, X)            \
    REEL_QK_KIND(head, false, x, X)   \
    REEL_QK_KIND(across, true, x, X)  \
    REEL_KERNEL(qk_norm_weights_##x, reel::QkReduceArgs, (reel::kReduceThreads), reel::qk_norm_weights<X>)

REEL_QK_TYPE(bf16, __nv_bfloat16)
REEL_QK_TYPE(f16, __half)
REEL_QK_TYPE(f32, float)
