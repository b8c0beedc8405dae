// The operators over the kernels, for torch's stable ABI: allocates, fills the argument blocks, launches. The twin of
// train/kernels/cuda/host.py, in C++ for the sake of the host's time; binding_qk.cpp has queries and keys. Schemas are those of
// the references in train/kernels without the numerics, which are fp32 always.
#include <array>
#include <string>
#include <tuple>

#include "host.h"
#include "launch.h"
#include "runtime.h"

namespace reel {
namespace {

// Rows of D elements, `stride` elements apart; or nothing. Copied only if rows have no single stride, or the
// type is another.
struct Rows {
    Maybe tensor;
    i64 stride = 0;
    bool aligned = true;

    Rows() = default;
    Rows(const Maybe& given, ScalarType dtype) {
        if (!given) return;
        tensor = as(*given, dtype);
        auto found = row_stride(tensor->sizes().data(), tensor->strides().data(), tensor->dim());
        if (!found) tensor = torch::stable::contiguous(*tensor);
        stride = found ? *found : i64(tensor->size(tensor->dim() - 1));
        aligned = is_aligned(tensor->data_ptr(), stride, type_of(dtype).bytes);
    }
    void* data() const { return pointer(tensor); }
};

// Common arguments of one call's launches; owns the tensors that the argument blocks point into.
struct Call {
    ScalarType modulation_dtype;
    Type x_type, m_type;
    i64 rows;
    int dim;
    Rows x, branch, scale, shift, gate, weight, bias;
    Maybe offsets;
    Groups groups;
    bool gated, per_token;
    std::string family;
    Runtime runtime;

    Call(const Tensor& given, const Maybe& given_branch, const Maybe& given_gate, const Tensor& given_scale,
         const Maybe& given_shift, const Maybe& given_weight, const Maybe& given_bias, const Maybe& cu_seqlens)
        : modulation_dtype(given_scale.scalar_type()), x_type(type_of(given.scalar_type())),
          gated(given_branch), runtime(given.get_device_index()) {
        check_device(given, {given_branch, given_gate, given_scale, given_shift, given_weight, given_bias, cu_seqlens});
        // The kernels take modulation, weight and bias of one type.
        for (const Maybe& parameter : {given_weight, given_bias})
            if (parameter && parameter->scalar_type() != given_scale.scalar_type()) modulation_dtype = ScalarType::Float;
        m_type = type_of(modulation_dtype);
        dim = int(given.size(given.dim() - 1));
        rows = given.numel() / dim;
        x = Rows(given, given.scalar_type());
        branch = Rows(given_branch, given.scalar_type());
        scale = Rows(given_scale, modulation_dtype);
        shift = Rows(given_shift, modulation_dtype);
        gate = Rows(given_gate, modulation_dtype);
        weight = Rows(given_weight, modulation_dtype);
        bias = Rows(given_bias, modulation_dtype);
        if (cu_seqlens) offsets = torch::stable::contiguous(as(*cu_seqlens, ScalarType::Int));
        const i64 count = given_scale.numel() / dim;
        groups = {pointer<const int>(offsets), rows / count, count, rows};
        per_token = is_per_token(rows, count, bool(offsets));
        family = gated ? "gate_residual_norm_modulate" : "layer_norm_modulate";
    }

    Modulation modulation() const {
        return {scale.data(), shift.data(), gate.data(), weight.data(), bias.data(),
                scale.stride, shift.stride, gate.stride};
    }

    bool aligned() const {
        bool all = true;
        for (const Rows* operand : {&x, &branch, &scale, &shift, &gate, &weight, &bias}) all &= operand->aligned;
        return all;
    }
};

// h (x itself without a gate), out, mean (empty for the RMS norm) and rstd.
std::array<Tensor, 4> forward(const Tensor& x, const Maybe& branch, const Maybe& gate, const Tensor& scale, const Tensor& shift,
                              const Maybe& weight, const Maybe& bias, const Maybe& cu_seqlens, double eps, bool rms) {
    const Call call(x, branch, gate, scale, shift, weight, bias, cu_seqlens);
    const Shape shape = shape_of(x), tokens(shape.begin(), shape.end() - 1);
    const Tensor y = empty(shape, x.scalar_type(), x);
    const Tensor h = call.gated ? empty(shape, x.scalar_type(), x) : x;
    const Tensor mean = empty(rms ? Shape{0} : tokens, ScalarType::Float, x), rstd = empty(tokens, ScalarType::Float, x);
    const auto launch = forward_launch(call.gated, call.dim, call.x_type.bytes, call.aligned());
    const std::string kernel = launch ? forward_name(call.family, call.x_type.name, call.m_type.name, *launch)
                                      : tiled_name(call.family, "forward", call.x_type.name, call.m_type.name, false);
    const int threads = launch ? launch->threads : tiled_threads(call.dim);
    const ForwardArgs args{
        call.x.data(), call.branch.data(), call.gated ? h.data_ptr() : nullptr, y.data_ptr(),
        static_cast<float*>(mean.data_ptr()), static_cast<float*>(rstd.data_ptr()), call.modulation(), call.groups,
        call.rows, call.x.stride, call.branch.stride, call.dim, rms, float(eps)};
    call.runtime.launch(kernel, &args, ceil_div(call.rows, launch ? launch->rows : 1), 1, {threads});
    return {h, y, mean, rstd};
}

// The second stage: fills dscale, dshift and dgate, unless backward did, by token; gives dweight and dbias.
std::array<Maybe, 2> reduce(const Call& call, const Tensor& partials, i64 per_block, bool affine, const Tensor& dscale,
                            const Tensor& dshift, const Maybe& dgate) {
    Maybe dweight, dbias, sums;
    if (affine) {
        dweight = empty({call.dim}, call.modulation_dtype, dscale);
        dbias = empty({call.dim}, call.modulation_dtype, dscale);
        if (!call.per_token) sums = empty({call.groups.count, 2, call.dim}, ScalarType::Float, dscale);
    }
    const Groups groups = call.per_token ? Groups{nullptr, call.rows, 1, call.rows} : call.groups;
    const std::string m = call.m_type.name;
    ReduceArgs args{static_cast<const float*>(partials.data_ptr()), pointer<float>(sums), nullptr, nullptr, nullptr,
                    nullptr, nullptr, groups, call.rows, per_block, call.dim, int(partials.size(1))};
    if (call.per_token) {
        args.dscale = pointer(dweight), args.dshift = pointer(dbias);
    } else {
        args.dscale = dscale.data_ptr(), args.dshift = dshift.data_ptr(), args.dgate = pointer(dgate);
        args.weight = call.weight.data(), args.bias = call.bias.data();
    }
    const auto [columns, lanes] = reduce_block(groups.count, call.dim, partials.size(0));
    call.runtime.launch("reduce_" + m, &args, groups.count, ceil_div(call.dim, columns), {columns, lanes});
    if (sums) {
        const AffineArgs affine_args{pointer<const float>(sums), call.scale.data(), pointer(dweight), pointer(dbias),
                                     call.scale.stride, groups.count, call.dim};
        call.runtime.launch("reduce_affine_" + m, &affine_args, ceil_div(call.dim, kAffineThreads), 1, {kAffineThreads});
    }
    return {dweight, dbias};
}

// Gradients of x (or residual), branch, gate, scale, shift, weight and bias; empty for absent ones.
std::array<Tensor, 7> backward(const Maybe& dh, const Tensor& dy, const Tensor& x, const Maybe& branch, const Tensor& mean,
                               const Tensor& rstd, const Maybe& gate, const Tensor& scale, const Maybe& weight,
                               const Maybe& bias, const Maybe& cu_seqlens, bool rms) {
    const Call call(x, branch, gate, scale, std::nullopt, weight, bias, cu_seqlens);
    const ScalarType dtype = x.scalar_type();
    const Rows dy_rows(dy, dtype), dh_rows(dh, dtype);
    const Tensor means = torch::stable::contiguous(mean), rstds = torch::stable::contiguous(rstd);
    const Shape shape = shape_of(x), vector = shape_of(scale);
    const Tensor dx = empty(shape, dtype, x);
    const Tensor dscale = empty(vector, call.modulation_dtype, x), dshift = empty(vector, call.modulation_dtype, x);
    Maybe dbranch, dgate, partials, row_sums;
    if (call.gated) dbranch = empty(shape, dtype, x), dgate = empty(vector, call.modulation_dtype, x);

    const auto launch = backward_launch(call.gated, call.dim, call.x_type.bytes,
                                        call.aligned() && dy_rows.aligned && dh_rows.aligned, call.runtime.shared_limit(),
                                        call.runtime.clusters(), call.per_token);
    const std::string x_name = call.x_type.name, m_name = call.m_type.name;
    const std::string kernel = launch ? backward_name(call.family, x_name, m_name, *launch, call.per_token)
                                      : tiled_name(call.family, "backward_columns", x_name, m_name, call.per_token);
    const int threads = launch ? launch->threads : tiled_threads(call.dim), shared = launch ? launch->shared_bytes : 0;
    const int cluster = launch ? launch->cluster : 1, teams = launch ? launch->teams : 1;
    const i64 across = launch ? 1 : ceil_div(call.dim, threads);
    const i64 per_block = rows_per_block(call.rows, call.runtime.resident(kernel, threads * teams, shared, cluster) / across);
    const bool affine = weight || bias;
    if (affine || !call.per_token)
        partials = empty({slots(call.rows, per_block, call.per_token ? 1 : call.groups.count),
                          call.gated && !call.per_token ? 3 : 2, call.dim}, ScalarType::Float, x);
    if (!launch) row_sums = empty({call.rows, 2}, ScalarType::Float, x);
    const BackwardArgs args{
        call.x.data(), dy_rows.data(), call.branch.data(), dh_rows.data(), dx.data_ptr(), pointer(dbranch),
        dscale.data_ptr(), dshift.data_ptr(), pointer(dgate), static_cast<const float*>(means.data_ptr()),
        static_cast<const float*>(rstds.data_ptr()), pointer<float>(partials), pointer<float>(row_sums),
        call.modulation(), call.groups, call.rows, per_block, call.x.stride, dy_rows.stride, call.branch.stride,
        dh_rows.stride, call.dim, rms};
    if (!launch)
        call.runtime.launch(tiled_name(call.family, "backward_rows", x_name, m_name, false), &args, call.rows, 1, {threads});
    call.runtime.launch(kernel, &args, cluster * ceil_div(call.rows, per_block), across, {threads, teams}, shared);
    std::array<Maybe, 2> of_affine;
    if (partials) of_affine = reduce(call, *partials, per_block, affine, dscale, dshift, dgate);

    const auto result = [&](const Maybe& like, const Maybe& found) {
        return like && found ? as(*found, like->scalar_type()) : empty({0}, dtype, x);
    };
    return {dx, result(branch, dbranch), result(gate, dgate), result(scale, dscale), result(scale, dshift),
            result(weight, of_affine[0]), result(bias, of_affine[1])};
}

std::tuple<Tensor, Tensor, Tensor> norm_modulate(
        Tensor x, Tensor scale, Tensor shift, Maybe weight, Maybe bias, Maybe cu_seqlens, double eps, bool rms) {
    auto [h, y, mean, rstd] = forward(x, std::nullopt, std::nullopt, scale, shift, weight, bias, cu_seqlens, eps, rms);
    return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> norm_modulate_backward(
        Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor scale, Maybe weight, Maybe bias, Maybe cu_seqlens, double,
        bool rms) {
    auto [dx, _, __, dscale, dshift, dweight, dbias] =
        backward(std::nullopt, dy, x, std::nullopt, mean, rstd, std::nullopt, scale, weight, bias, cu_seqlens, rms);
    return {dx, dscale, dshift, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gate_norm_modulate(
        Tensor residual, Tensor y, Tensor gate, Tensor scale, Tensor shift, Maybe weight, Maybe bias, Maybe cu_seqlens,
        double eps, bool rms) {
    auto [h, out, mean, rstd] = forward(residual, y, gate, scale, shift, weight, bias, cu_seqlens, eps, rms);
    return {h, out, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gate_norm_modulate_backward(
        Maybe dh, Tensor dout, Tensor h, Tensor y, Tensor mean, Tensor rstd, Tensor gate, Tensor scale, Maybe weight,
        Maybe bias, Maybe cu_seqlens, double, bool rms) {
    auto [dresidual, dy, dgate, dscale, dshift, dweight, dbias] =
        backward(dh, dout, h, y, mean, rstd, gate, scale, weight, bias, cu_seqlens, rms);
    return {dresidual, dy, dgate, dscale, dshift, dweight, dbias};
}

}  // namespace
}  // namespace reel

#define REEL_REST "Tensor? weight, Tensor? bias, Tensor? cu_seqlens, float eps, bool rms"

REEL_LIBRARY_FRAGMENT(REEL_NAMESPACE, m) {
    m.def("norm_modulate(Tensor x, Tensor scale, Tensor shift, " REEL_REST ") -> (Tensor, Tensor, Tensor)");
    m.def("norm_modulate_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor scale, " REEL_REST
          ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
    m.def("gate_norm_modulate(Tensor residual, Tensor y, Tensor gate, Tensor scale, Tensor shift, " REEL_REST
          ") -> (Tensor, Tensor, Tensor, Tensor)");
    m.def("gate_norm_modulate_backward(Tensor? dh, Tensor dout, Tensor h, Tensor y, Tensor mean, Tensor rstd, "
          "Tensor gate, Tensor scale, " REEL_REST ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

REEL_LIBRARY_IMPL(REEL_NAMESPACE, REEL_DEVICE, m) {
    m.impl("norm_modulate", TORCH_BOX(&reel::norm_modulate));
    m.impl("norm_modulate_backward", TORCH_BOX(&reel::norm_modulate_backward));
    m.impl("gate_norm_modulate", TORCH_BOX(&reel::gate_norm_modulate));
    m.impl("gate_norm_modulate_backward", TORCH_BOX(&reel::gate_norm_modulate_backward));
}

#ifndef REEL_EMULATED
extern "C" {
bool reel_has_kernel(const char* name) { return reel::table().count(name); }

// Reason why this library's CUDA runtime cannot use the GPUs here, or null.
const char* reel_problem() {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}
}
#endif
