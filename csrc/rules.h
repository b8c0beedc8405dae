// The table of the launch rules: the kernels, the host side in C++ (launch.h, launch_qk.h) and the host side in Python
// (train/kernels/cuda/rules.py, which reads these lines as text) take every number from here. No header of the C++ library,
// since NVRTC has none.
#pragma once

namespace reel {

constexpr int kWarp = 32;              // threads of a warp
constexpr int kVectorBytes = 16;       // bytes of a vector access; rows begin at multiples of them
constexpr int kTiledThreads = 256;     // largest block of the tiled path
constexpr int kReduceLanes = 32;       // warps of a block of the second stage
constexpr int kReduceAhead = 4;        // slots that a warp of it reads at once
constexpr int kAffineThreads = 256;    // block of the affine reduction
constexpr int kPairThreads = 512;      // largest block of qk_norm
constexpr int kPairElements = 16;      // elements of a row that a thread of qk_norm holds, in pairs of vectors
constexpr int kNarrowBytes = 4;        // widest row, in bytes a column, whose ring is deep: 8192 columns fit an A100's memory
constexpr int kThinBytes = 2;          // widest row whose ring is deepest: its rows are the smallest to be under way
constexpr int kThinRing = 4;           // rows of the deepest ring
constexpr int kDeepRing = 3;           // rows of a deep ring
constexpr int kShallowRing = 2;        // rows of any other ring
constexpr int kUnaskedBytes = 49152;   // shared memory of a block, static and dynamic, beyond which a kernel must ask
constexpr int kStaticBytes = 1024;     // upper bound of the static shared memory of a kernel that has dynamic, too

// Classes of D: elements that a thread holds, largest block (their product is the largest D), and the blocks that a
// multiprocessor shall hold of forward, gated forward, backward and backward by token. More of any would spill.
#define REEL_REGISTER_CLASSES(CLASS, ...)   \
    CLASS(16, 128, 5, 5, 5, 3, __VA_ARGS__) \
    CLASS(16, 320, 2, 2, 2, 1, __VA_ARGS__) \
    CLASS(16, 512, 1, 1, 1, 1, __VA_ARGS__)

// Wider rows are cut over a cluster of blocks (sm_90 and newer): as above, with the blocks of a cluster in third place.
#define REEL_CLUSTER_CLASSES(CLUSTER, ...)    \
    CLUSTER(16, 256, 4, 2, 2, 2, 1, __VA_ARGS__)

constexpr int kClusterOldest = 9;      // major compute capability from which there are clusters

}  // namespace reel
