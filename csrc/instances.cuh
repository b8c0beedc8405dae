// Names of the kernels: <family>_forward_<x>_<modulation>_v<vectors a thread>_t<largest block> and
// <family>_<backward>_<x>_<modulation>_e<elements a thread>_t<largest team>[_c<blocks of a cluster>]. extern "C", so that a
// library, NVRTC and the emulator find them by one name.
#pragma once
#include "tiled.cuh"

#define REEL_FORWARDS_false REEL_FORWARD_CLASSES
#define REEL_FORWARDS_true REEL_GATED_FORWARD_CLASSES

#define REEL_INSTANCES(FAMILY, GATE, x, X, m, M)                                                                     \
    REEL_FORWARDS_##GATE(REEL_FORWARD, FAMILY, GATE, x, X, m, M)                                                     \
    REEL_REGISTER_CLASSES(REEL_REGISTERS, FAMILY, GATE, x, X, m, M)                                                  \
    REEL_CLUSTER_CLASSES(REEL_CLUSTERS, FAMILY, GATE, x, X, m, M)                                                    \
    REEL_KERNEL(FAMILY##_forward_tiled_##x##_##m, reel::ForwardArgs, (reel::kTiledThreads),                          \
                reel::forward_tiled<X, M, GATE>)                                                                     \
    REEL_KERNEL(FAMILY##_backward_rows_tiled_##x##_##m, reel::BackwardArgs, (reel::kTiledThreads),                   \
                reel::backward_rows_tiled<X, M, GATE>)                                                               \
    REEL_KERNEL(FAMILY##_backward_columns_tiled_##x##_##m, reel::BackwardArgs, (reel::kTiledThreads),                \
                reel::backward_columns_tiled<X, M, GATE, false>)                                                     \
    REEL_KERNEL(FAMILY##_backward_columns_tiled_token_##x##_##m, reel::BackwardArgs, (reel::kTiledThreads),          \
                reel::backward_columns_tiled<X, M, GATE, true>)

#define REEL_FORWARD(vectors, threads, blocks, FAMILY, GATE, x, X, m, M)                                             \
    REEL_KERNEL(FAMILY##_forward_##x##_##m##_v##vectors##_t##threads, reel::ForwardArgs, (threads, blocks),          \
                reel::forward<X, M, vectors, GATE, threads>)

#define REEL_REGISTERS(elements, threads, back, token, FAMILY, GATE, x, X, m, M)                                     \
    REEL_KERNEL(FAMILY##_backward_##x##_##m##_e##elements##_t##threads, reel::BackwardArgs, (back),                  \
                reel::backward<X, M, elements / reel::Pack<X>::kSize, GATE, false, threads, threads == back>)        \
    REEL_KERNEL(FAMILY##_backward_token_##x##_##m##_e##elements##_t##threads, reel::BackwardArgs, (token),           \
                reel::backward<X, M, elements / reel::Pack<X>::kSize, GATE, true, threads, threads == token>)

#define REEL_CLUSTERS(elements, threads, blocks, back, token, FAMILY, GATE, x, X, m, M)                              \
    REEL_CLUSTER_KERNEL(FAMILY##_backward_##x##_##m##_e##elements##_t##threads##_c##blocks, reel::BackwardArgs,      \
                        blocks, (threads, back),                                                                     \
                        reel::backward<X, M, elements / reel::Pack<X>::kSize, GATE, false, threads, true, blocks>)   \
    REEL_CLUSTER_KERNEL(FAMILY##_backward_token_##x##_##m##_e##elements##_t##threads##_c##blocks, reel::BackwardArgs, \
                        blocks, (threads, token),                                                                    \
                        reel::backward<X, M, elements / reel::Pack<X>::kSize, GATE, true, threads, true, blocks>)

#define REEL_FAMILY(FAMILY, GATE)                                                                                    \
    REEL_INSTANCES(FAMILY, GATE, bf16, __nv_bfloat16, f32, float)                                                    \
    REEL_INSTANCES(FAMILY, GATE, bf16, __nv_bfloat16, bf16, __nv_bfloat16)                                           \
    REEL_INSTANCES(FAMILY, GATE, f16, __half, f32, float)                                                            \
    REEL_INSTANCES(FAMILY, GATE, f16, __half, f16, __half)                                                           \
    REEL_INSTANCES(FAMILY, GATE, f32, float, f32, float)
