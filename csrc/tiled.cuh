// The path for any D, any alignment and any row stride, by the D-tile reduction of AdaptiveLoad 3.3: thread = column,
// rows walked downwards. It reads x and dy twice (10 bytes an element of bf16 backward, not 6). It serves what the
// register kernels cannot hold, and is the independent second answer in the tests.
#pragma once
#include "norm_modulate.cuh"

namespace reel {

template <typename X>
__device__ __forceinline__ float element(const void* base, i64 stride, i64 row, int column) {
    return Pack<X>::to_float(static_cast<const X*>(base)[row * stride + column]);
}

template <typename X>
__device__ __forceinline__ void put(void* base, i64 row, int dim, int column, float value) {
    static_cast<X*>(base)[row * dim + column] = Pack<X>::from_float(value);
}

// The modulation of one element.
template <typename M>
struct Element {
    float scale, gate, weight, bias;
    __device__ __forceinline__ Element(const Modulation& mod, i64 group, int column)
        : scale(element<M>(mod.scale, mod.scale_stride, group, column)),
          gate(mod.gate ? element<M>(mod.gate, mod.gate_stride, group, column) : 1.f),
          weight(mod.weight ? element<M>(mod.weight, 0, 0, column) : 1.f),
          bias(mod.bias ? element<M>(mod.bias, 0, 0, column) : 0.f) {}
};

// One block a row.
template <typename X, typename M, bool GATE>
__device__ __forceinline__ void forward_tiled(const ForwardArgs& args) {
    __shared__ float sums[2][kWarp];
    const Modulation& mod = args.modulation;
    const i64 row = blockIdx.x, group = group_of(args.groups, row);
    const void* x = GATE ? args.h : args.x;
    const i64 stride = GATE ? args.dim : args.x_stride;
    if constexpr (GATE)
        for (int column = threadIdx.x; column < args.dim; column += blockDim.x)
            put<X>(args.h, row, args.dim, column,
                   fmaf(Element<M>(mod, group, column).gate, element<X>(args.branch, args.branch_stride, row, column),
                        element<X>(args.x, args.x_stride, row, column)));
    float total = 0.f, squares = 0.f;
    for (int column = threadIdx.x; column < args.dim; column += blockDim.x) total += element<X>(x, stride, row, column);
    const float mean = args.rms ? 0.f : block_sum(total, sums[0]) / args.dim;
    for (int column = threadIdx.x; column < args.dim; column += blockDim.x) {
        const float centred = element<X>(x, stride, row, column) - mean;
        squares = fmaf(centred, centred, squares);
    }
    const float rstd = rsqrtf(block_sum(squares, sums[1]) / args.dim + args.eps);
    if (threadIdx.x == 0) {
        if (!args.rms) args.mean[row] = mean;
        args.rstd[row] = rstd;
    }
    for (int column = threadIdx.x; column < args.dim; column += blockDim.x) {
        const Element<M> m(mod, group, column);
        const float n = (element<X>(x, stride, row, column) - mean) * rstd;
        put<X>(args.y, row, args.dim, column,
               fmaf(fmaf(n, m.weight, m.bias), 1.f + m.scale, element<M>(mod.shift, mod.shift_stride, group, column)));
    }
}

template <typename X, bool GATE>
struct Gradient {
    float dy, n, dx;
    template <typename M>
    __device__ __forceinline__ Gradient(const BackwardArgs& args, i64 row, int column, const Element<M>& m, float2 mean_of)
        : dy(element<X>(args.dy, args.dy_stride, row, column)),
          n((element<X>(args.x, args.x_stride, row, column) - (args.rms ? 0.f : args.mean[row])) * args.rstd[row]) {
        dx = args.rstd[row] * (dy * (1.f + m.scale) * m.weight - mean_of.x - n * mean_of.y);
        if constexpr (GATE)
            if (args.dh) dx += element<X>(args.dh, args.dh_stride, row, column);
    }
};

// One block a row: dx, and the row's two means for the second pass.
template <typename X, typename M, bool GATE>
__device__ __forceinline__ void backward_rows_tiled(const BackwardArgs& args) {
    __shared__ float2 sums[kWarp];
    const i64 row = blockIdx.x, group = group_of(args.groups, row);
    float2 total = make_float2(0.f, 0.f);
    for (int column = threadIdx.x; column < args.dim; column += blockDim.x) {
        const Element<M> m(args.modulation, group, column);
        const Gradient<X, GATE> g(args, row, column, m, make_float2(0.f, 0.f));
        const float w = g.dy * (1.f + m.scale) * m.weight;
        total.x += w;
        total.y = fmaf(w, g.n, total.y);
    }
    total = team_sum(total, sums);
    const float2 mean_of = make_float2(args.rms ? 0.f : total.x / args.dim, total.y / args.dim);
    if (threadIdx.x == 0) args.row_sums[2 * row] = mean_of.x, args.row_sums[2 * row + 1] = mean_of.y;
    for (int column = threadIdx.x; column < args.dim; column += blockDim.x) {
        const Element<M> m(args.modulation, group, column);
        const Gradient<X, GATE> g(args, row, column, m, mean_of);
        put<X>(args.dx, row, args.dim, column, g.dx);
        if constexpr (GATE) put<X>(args.dbranch, row, args.dim, column, m.gate * g.dx);
    }
}

// Grid (blocks of `rows_per_cta` rows, tiles of columns): the sums over rows, to the slots of norm_modulate.cuh.
template <typename X, typename M, bool GATE, bool TOKEN>
__device__ __forceinline__ void backward_columns_tiled(const BackwardArgs& args) {
    constexpr int kParts = GATE && !TOKEN ? 3 : 2;
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const i64 first = blockIdx.x * args.rows_per_cta;
    const i64 last = first + args.rows_per_cta < args.rows ? first + args.rows_per_cta : args.rows;
    if (column >= args.dim || first >= last) return;
    Cursor cursor(args.groups, first);
    float kept[kParts] = {};
    const auto end_group = [&]() {
        if (!args.partials) return;
        const i64 slot = blockIdx.x + (TOKEN ? 0 : cursor.group);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            args.partials[(slot * kParts + part) * args.dim + column] = kept[part];
            kept[part] = 0.f;
        }
    };
    for (i64 row = first; row < last; ++row) {
        if (cursor.end == row) {
            if constexpr (!TOKEN) end_group();
            cursor.move_to(row);
        }
        const Element<M> m(args.modulation, cursor.group, column);
        const Gradient<X, GATE> g(args, row, column, m,
                                  make_float2(args.row_sums[2 * row], args.row_sums[2 * row + 1]));
        const float gain = TOKEN ? 1.f + m.scale : 1.f;
        kept[0] = fmaf(g.dy * gain, g.n, kept[0]);
        kept[1] = fmaf(g.dy, gain, kept[1]);
        float dgate = 0.f;
        if constexpr (GATE) dgate = g.dx * element<X>(args.branch, args.branch_stride, row, column);
        if constexpr (GATE && !TOKEN) kept[kParts - 1] += dgate;
        if constexpr (TOKEN) {
            put<M>(args.dscale, row, args.dim, column, g.dy * fmaf(g.n, m.weight, m.bias));
            put<M>(args.dshift, row, args.dim, column, g.dy);
            if constexpr (GATE)
                if (args.modulation.gate) put<M>(args.dgate, row, args.dim, column, dgate);
        }
    }
    end_group();
}

}  // namespace reel
