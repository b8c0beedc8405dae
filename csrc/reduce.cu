// The second stage of the gradients of scale, shift and gate, and of the affine weight and bias.
#include "norm_modulate.cuh"

#define REEL_REDUCTIONS(m, M)                                                          \
    REEL_KERNEL(reduce_##m, reel::ReduceArgs, (reel::kReduceThreads), reel::reduce<M>) \
    REEL_KERNEL(reduce_affine_##m, reel::AffineArgs, (reel::kAffineThreads), reel::reduce_affine<M>)

REEL_REDUCTIONS(f32, float)
REEL_REDUCTIONS(bf16, __nv_bfloat16)
REEL_REDUCTIONS(f16, __half)
