// The argument blocks of the kernels: one struct by value is a kernel's only argument. Plain C++, for the host too;
// train/kernels/cuda/rules.py reads these declarations and makes structures of ctypes of them.
#pragma once

typedef long long i64;

namespace reel {

// Consecutive rows that share a row of modulation: `count` groups of `rows_per_group`, or, where `offsets` is
// given, group g is rows [offsets[g], offsets[g + 1]) and may be empty (cu_seqlens of a packed batch). The last group
// ends at `rows` whatever its offset says, and no other reaches beyond: nothing on the device could refuse wrong ones.
struct Groups {
    const int* offsets;
    i64 rows_per_group;
    i64 count, rows;
};

struct Modulation {
    const void *scale, *shift, *gate;      // M [groups, D], rows `stride` apart; gate only with GATE, may be null (1)
    const void *weight, *bias;             // M [D], may be null
    i64 scale_stride, shift_stride, gate_stride;
};

struct ForwardArgs {
    const void* x;                         // X [rows, D]; with GATE the residual
    const void* branch;                    // X [rows, D], GATE only
    void* h;                               // X [rows, D] contiguous, GATE only: the new residual stream
    void* y;                               // X [rows, D] contiguous
    float *mean, *rstd;                    // [rows]
    Modulation modulation;
    Groups groups;
    i64 rows, x_stride, branch_stride;
    int dim, rms;
    float eps;
};

struct BackwardArgs {
    const void *x, *dy;                    // X [rows, D]; with GATE x is h
    const void *branch, *dh;               // X [rows, D], GATE only; dh: h's gradient from elsewhere, or null
    void* dx;                              // X [rows, D] contiguous; with GATE dresidual
    void* dbranch;                         // X [rows, D] contiguous, GATE only
    void *dscale, *dshift, *dgate;         // M [rows, D] contiguous, TOKEN only
    const float *mean, *rstd;              // [rows]
    float* partials;                       // [slots, 2 or (GATE) 3, D]; TOKEN: sums of dweight, dbias; null: not wanted
    float* row_sums;                       // [rows, 2] scratch of the tiled path
    Modulation modulation;
    Groups groups;                         // TOKEN: one row a group
    i64 rows, rows_per_cta, x_stride, dy_stride, branch_stride, dh_stride;
    int dim, rms;
};

struct ReduceArgs {
    const float* partials;                 // [slots, parts, D]
    float* sums;                           // [groups, 2, D]: sum dy*n and sum dy; null where there is no affine
    void *dscale, *dshift, *dgate;         // M [groups, D] contiguous
    const void *weight, *bias;             // M [D], may be null
    Groups groups;
    i64 rows, rows_per_cta;
    int dim, parts;
};

struct AffineArgs {
    const float* sums;                     // [groups, 2, D]
    const void* scale;                     // M [groups, D]
    void *dweight, *dbias;                 // M [D]
    i64 scale_stride, groups;
    int dim;
};

struct HeadStrides {
    i64 sample, token, head;               // in elements
};

struct Heads {                             // the queries or the keys
    const void *x, *dy;                    // X [samples, tokens, heads, width], strided; dy: backward
    void* y;                               // X [rows, heads, width] contiguous; backward: dx
    float* rstd;                           // [rows, heads], ACROSS [rows]
    const void* weight;                    // [width], ACROSS [heads * width], X or float; may be null
    float* partials;                       // backward, [blocks, columns of the weight]; null: not wanted
    HeadStrides x_strides, dy_strides;
    i64 rows, tokens;                      // rows = samples * tokens, each below 2**31 in a block and in a sample
    int heads;
};

struct QkNormArgs {
    Heads side[2];                         // q, k
    const float *cos, *sin;                // [samples or 1, tokens, width / 2], null: no rotation
    i64 rotation_sample, rotation_token;   // strides of both, in elements
    i64 rows_per_cta, q_blocks;            // the first blocks are the queries'
    int width, lanes, interleaved;
    int float_weights;                     // of any X
    float eps;
};

struct QkReduceArgs {
    const float* partials[2];              // [blocks, columns]
    void* dweight[2];                      // M [columns], may be null
    i64 blocks[2];
    int columns[2];
};

}  // namespace reel
