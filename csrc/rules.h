// The table of the launch rules: the kernels and the host side in Python
// (train/kernels/cuda/rules.py, which reads these lines as text) take every number from here. No header of the C++ library,
// since NVRTC has none.
#pragma once

namespace reel {

constexpr int kWarp = 32;              // threads of a warp
constexpr int kVectorBytes = 16;       // bytes of a vector access; rows begin at multiples of them
constexpr int kTiledThreads = 256;     // largest block of the tiled path
constexpr int kForwardRows = 2;        // rows of a block of the forward without a gate
constexpr int kReduceThreads = 512;    // largest block of the second stage
constexpr int kReduceColumns = 8;      // fewest columns of it: a sector of memory
constexpr int kReduceBlocks = 256;     // blocks up to which its columns are few
constexpr int kReduceAhead = 8;        // slots that a thread of it reads at once
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

// Classes of D, forward: vectors of a row that a thread holds, largest block (their product is the largest D, in vectors),
// and the blocks that a multiprocessor shall hold. More would spill.
#define REEL_FORWARD_CLASSES(FORWARD, ...) \
    FORWARD(3, 128, 7, __VA_ARGS__)        \
    FORWARD(6, 128, 5, __VA_ARGS__)        \
    FORWARD(4, 256, 3, __VA_ARGS__)        \
    FORWARD(6, 256, 2, __VA_ARGS__)        \
    FORWARD(4, 512, 1, __VA_ARGS__)        \
    FORWARD(6, 512, 1, __VA_ARGS__)

#define REEL_GATED_FORWARD_CLASSES(GATED, ...) \
    GATED(2, 192, 6, __VA_ARGS__)              \
    GATED(3, 256, 4, __VA_ARGS__)              \
    GATED(6, 512, 1, __VA_ARGS__)

// Backward: elements that a thread holds, largest team (the threads of a row), and the largest block of backward and of
// backward by token, which has as many teams as fit; one, where it is as large as the largest team. More would spill.
#define REEL_REGISTER_CLASSES(CLASS, ...) \
    CLASS(16, 320, 640, 384, __VA_ARGS__) \
    CLASS(16, 512, 512, 512, __VA_ARGS__)

// Wider rows are cut over a cluster of blocks (sm_90 and newer), each of one team: its largest, the blocks of a cluster, and the
// blocks of backward and of backward by token that a multiprocessor shall hold.
#define REEL_CLUSTER_CLASSES(CLUSTER, ...) \
    CLUSTER(16, 256, 4, 2, 1, __VA_ARGS__)

constexpr int kTeams = 1;              // most rows that a block of the backward works on at once; more is not measured yet
constexpr int kMostTeams = 15;         // and the most that it could: it has 16 barriers
static_assert(kTeams <= kMostTeams);

constexpr int kClusterOldest = 9;      // major compute capability from which there are clusters

}  // namespace reel
