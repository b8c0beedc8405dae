// qk_norm over the kernels: the twin of train/kernels/cuda/host_qk.py. For unsupported tensors the result is an
// empty list, and the caller runs the reference.
#include <string>

#include "host.h"
#include "launch_qk.h"
#include "runtime.h"

namespace reel {
namespace {

using Results = std::vector<Tensor>;

bool begins_aligned(const Maybe& tensor) { return !tensor || is_aligned(tensor->data_ptr(), 0, 1); }

Maybe dense(const Maybe& tensor) {
    if (!tensor) return std::nullopt;
    return torch::stable::contiguous(*tensor);
}

// [B, L, H, d] whose channels are dense, or nothing. Copied only if channels are not dense, or the type differs.
struct Tokens {
    Maybe tensor;
    HeadStrides strides{};
    bool aligned = true;

    Tokens(const Maybe& given, ScalarType dtype) {
        if (!given) return;
        tensor = as(*given, dtype);
        auto found = head_strides(tensor->sizes().data(), tensor->strides().data());
        if (!found) {
            tensor = torch::stable::contiguous(*tensor);
            found = head_strides(tensor->sizes().data(), tensor->strides().data());
        }
        strides = *found;
        for (const i64 stride : {strides.sample, strides.token, strides.head})
            aligned &= is_aligned(tensor->data_ptr(), stride, type_of(dtype).bytes);
    }
};

// The queries or the keys.
struct Side {
    Tokens x, dy;
    Maybe weight;
    i64 tokens, rows;
    int heads;

    Side(const Tensor& given_x, const Maybe& given_dy, const Maybe& given_weight, ScalarType dtype)
        : x(given_x, dtype), dy(given_dy, dtype), weight(dense(given_weight)), tokens(given_x.size(1)),
          rows(given_x.size(0) * tokens), heads(int(given_x.size(2))) {}
    bool aligned() const { return x.aligned && dy.aligned && begins_aligned(weight); }
    Heads args(const Tensor& y, const Tensor& rstd, const Maybe& partials) const {
        return {pointer(x.tensor), pointer(dy.tensor), y.data_ptr(), static_cast<float*>(rstd.data_ptr()),
                pointer(weight), pointer<float>(partials), x.strides, dy.strides, rows, tokens, heads};
    }
};

// Common arguments of one call's launches; owns the tensors that the argument blocks point into.
struct Call {
    ScalarType dtype;
    Side q, k;
    Maybe cos, sin;
    int width;
    bool interleaved;
    Runtime runtime;
    std::string kernel;
    std::optional<PairLaunch> launch;      // nothing: the kernels do not take it
    i64 per_block = 0, q_blocks = 0, k_blocks = 0;

    Call(bool backward, const Maybe& dq, const Maybe& dk, const Tensor& given_q, const Tensor& given_k,
         const Maybe& weight_q, const Maybe& weight_k, const Maybe& given_cos, const Maybe& given_sin, bool across,
         bool interleaved)
        : dtype(given_q.scalar_type()), q(given_q, dq, weight_q, dtype), k(given_k, dk, weight_k, dtype),
          cos(dense(given_cos)), sin(dense(given_sin)), width(int(given_q.size(3))), interleaved(interleaved),
          runtime(given_q.get_device_index()) {
        check_device(given_q, {given_k, dq, dk, weight_q, weight_k, cos, sin});
        const Type type = type_of(dtype);
        const bool angles = begins_aligned(cos) && begins_aligned(sin) &&
                            (!cos || is_aligned(nullptr, cos->stride(cos->dim() - 2), sizeof(float)));
        launch = pair_launch(backward, std::max(q.heads, k.heads), width, type.bytes, across, cos && !interleaved,
                             q.aligned() && k.aligned() && angles, runtime.shared_limit());
        if (!launch) return;
        kernel = pair_kernel_name(backward, across, type.name);
        const int resident = runtime.resident(kernel, launch->threads, launch->shared_bytes);
        per_block = pair_rows_per_block(q.rows, k.rows, resident);
        q_blocks = ceil_div(q.rows, per_block), k_blocks = ceil_div(k.rows, per_block);
    }

    void run(const Results& outs, const Results& statistics, const Maybe& partials_q, const Maybe& partials_k,
             double eps) const {
        const Maybe& weight = q.weight ? q.weight : k.weight;
        const QkNormArgs args{
            {q.args(outs[0], statistics[0], partials_q), k.args(outs[1], statistics[1], partials_k)},
            pointer<const float>(cos), pointer<const float>(sin), cos && cos->dim() == 3 ? i64(cos->stride(0)) : 0,
            cos ? i64(cos->stride(cos->dim() - 2)) : 0, per_block, q_blocks, width, launch->lanes, interleaved,
            weight && weight->scalar_type() == ScalarType::Float, float(eps)};
        runtime.launch(kernel, &args, q_blocks + k_blocks, 1, {launch->threads}, launch->shared_bytes);
    }

    // The second stage: gradients of the weights, zero without rows; empty without a weight.
    Results reduce(const Maybe& partials_q, const Maybe& partials_k) const {
        const auto columns = [](const Side& side) { return side.weight ? int(side.weight->numel()) : 0; };
        const Maybe& weight = q.weight ? q.weight : k.weight;
        const ScalarType type = weight ? weight->scalar_type() : dtype;
        const Results found = {empty({columns(q)}, type, *q.x.tensor), empty({columns(k)}, type, *q.x.tensor)};
        if (!weight) return found;
        const QkReduceArgs args{{pointer<const float>(partials_q), pointer<const float>(partials_k)},
                                {q.weight ? found[0].data_ptr() : nullptr, k.weight ? found[1].data_ptr() : nullptr},
                                {q_blocks, k_blocks},
                                {columns(q), columns(k)}};
        const int widest = std::max(columns(q), columns(k));
        const auto [across, lanes] = reduce_block(2, widest, q_blocks + k_blocks);
        runtime.launch(std::string("reduce_qk_weights_") + type_of(type).name, &args, 2, ceil_div(widest, across),
                       {across, lanes});
        return found;
    }
};

Results qk_norm(Tensor q, Tensor k, Maybe weight_q, Maybe weight_k, Maybe cos, Maybe sin, double eps, bool across,
                bool interleaved) {
    const Call call(false, std::nullopt, std::nullopt, q, k, weight_q, weight_k, cos, sin, across, interleaved);
    if (!call.launch) return {};
    Results outs, statistics;
    for (const Tensor* x : {&q, &k}) {
        outs.push_back(empty(shape_of(*x), call.dtype, q));
        statistics.push_back(empty({x->size(0), x->size(1), across ? 1 : x->size(2)}, ScalarType::Float, q));
    }
    call.run(outs, statistics, std::nullopt, std::nullopt, eps);
    return {outs[0], outs[1], statistics[0], statistics[1]};
}

Results qk_norm_backward(Tensor dq, Tensor dk, Tensor q, Tensor k, Tensor rstd_q, Tensor rstd_k, Maybe weight_q,
                         Maybe weight_k, Maybe cos, Maybe sin, double eps, bool across, bool interleaved) {
    const Call call(true, dq, dk, q, k, weight_q, weight_k, cos, sin, across, interleaved);
    if (!call.launch) return {};
    const auto partials = [&](const Maybe& weight, i64 blocks) -> Maybe {
        if (!weight) return std::nullopt;
        return empty({blocks, weight->numel()}, ScalarType::Float, q);
    };
    const Results outs = {empty(shape_of(q), call.dtype, q), empty(shape_of(k), call.dtype, q)};
    const Results statistics = {torch::stable::contiguous(rstd_q), torch::stable::contiguous(rstd_k)};
    const Maybe partials_q = partials(weight_q, call.q_blocks), partials_k = partials(weight_k, call.k_blocks);
    call.run(outs, statistics, partials_q, partials_k, eps);
    const Results weights = call.reduce(partials_q, partials_k);
    return {outs[0], outs[1], weights[0], weights[1]};
}

}  // namespace
}  // namespace reel

#define REEL_PARAMETERS \
    "Tensor? weight_q, Tensor? weight_k, Tensor? cos, Tensor? sin, float eps, bool across_heads, bool interleaved"

REEL_LIBRARY_FRAGMENT(REEL_NAMESPACE, m) {
    m.def("qk_norm(Tensor q, Tensor k, " REEL_PARAMETERS ") -> Tensor[]");
    m.def("qk_norm_backward(Tensor dq, Tensor dk, Tensor q, Tensor k, Tensor rstd_q, Tensor rstd_k, " REEL_PARAMETERS
          ") -> Tensor[]");
}

REEL_LIBRARY_IMPL(REEL_NAMESPACE, REEL_DEVICE, m) {
    m.impl("qk_norm", TORCH_BOX(&reel::qk_norm));
    m.impl("qk_norm_backward", TORCH_BOX(&reel::qk_norm_backward));
}
