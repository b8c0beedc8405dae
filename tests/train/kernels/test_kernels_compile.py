"""The operators as PyTorch sees them: schema, fake kernels, autograd registration, and compiled without a break."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reelweave.train.kernels import providers
from reelweave.train.kernels.eager import EAGER
from reelweave.train.kernels.gate_norm_modulate.operator import (
    gate_norm_modulate,
    gate_norm_modulate_backward,
    gate_residual_norm_modulate,
)
from reelweave.train.kernels.norm_modulate.operator import (
    layer_norm_modulate,
    norm_modulate,
    norm_modulate_backward,
)
from reelweave.train.kernels.qk_norm.operator import qk_norm
from tests.thorough import but, thorough
from tests.train.comparison import relative
from tests.train.kernels.kernel_cases import FORMS, case, gradients, leaves


@pytest.mark.parametrize("form", but(("packed",), FORMS, ("sample",)))
@pytest.mark.parametrize("rms", [pytest.param(False, marks=thorough), True], ids=["layer", "rms"])
def test_opcheck(form, rms):
    affine = rms == (form in ("sample", "token"))  # every two of the three meet
    (x, y), rows, (weight, bias), cu_seqlens = case(form, dtype=torch.bfloat16, affine=affine)
    gate, scale, shift = rows
    flags = (weight, bias, cu_seqlens, 1e-6, rms, "eager" if affine else "fp32")
    _, mean, rstd = norm_modulate(x, scale, shift, *flags)
    torch.library.opcheck(norm_modulate, (*leaves(x, scale, shift), *flags))
    torch.library.opcheck(norm_modulate_backward, (y, x, mean, rstd, scale, *flags))
    torch.library.opcheck(gate_norm_modulate, (*leaves(x, y, *rows), *flags))
    dh = None if rms else x
    torch.library.opcheck(gate_norm_modulate_backward, (dh, y, x, y, mean, rstd, gate, scale, *flags))


@thorough
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=thorough), True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", but(("frame", "packed"), FORMS, ()))
def test_compiled_whole_it_gives_the_same_bits(monkeypatch, form, dynamic):
    """Kernels have the same bits; without them autograd goes through plain PyTorch, and sums in another order."""
    kernels = EAGER if dynamic == (form in ("sample", "frame")) else None  # every two of the three meet
    monkeypatch.setattr(
        providers, "choose_provider", lambda: providers.LoadedProvider(providers.PROVIDERS[-1], kernels, "")
    )

    def block(x, y, gate, scale, shift, cu_seqlens):
        h, out = gate_residual_norm_modulate(x, y, gate, scale, shift, cu_seqlens=cu_seqlens)
        return h + layer_norm_modulate(out.sin(), scale, shift, rms=True, cu_seqlens=cu_seqlens)

    torch._dynamo.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for L in (6, 12):
        (x, y), rows, _, cu_seqlens = case(form, L=L)
        mine, theirs = leaves(x, y, *rows), leaves(x, y, *rows)
        found, expected = compiled(*mine, cu_seqlens), block(*theirs, cu_seqlens)
        upstream = [torch.randn_like(expected)]
        assert torch.equal(found, expected)
        for a, b in zip(gradients(found, upstream, mine), gradients(expected, upstream, theirs), strict=True):
            assert torch.equal(a, b) if kernels else relative(a, b) < 1e-6


@thorough
@pytest.mark.parametrize("kernels", [None, EAGER], ids=["references", "kernels"])
def test_only_kernels_stay_whole_in_a_compiled_graph(monkeypatch, kernels):
    """Inductor fuses what it sees; an operator without a kernel would hide plain PyTorch from it."""
    from torch._dynamo.backends.common import aot_autograd

    monkeypatch.setattr(
        providers, "choose_provider", lambda: providers.LoadedProvider(providers.PROVIDERS[-1], kernels, "")
    )
    seen = []

    def backend(graph, _inputs):
        from functorch.compile import make_boxed_func

        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)

    def block(x, y, gate, scale, shift, q):
        h, out = gate_residual_norm_modulate(x, y, gate, scale, shift, numerics="fp32")
        q, k = qk_norm(q, q)
        return layer_norm_modulate(h + out, scale, scale, numerics="fp32"), q, k

    (x, y), rows, _, _ = case()
    q = torch.randn(2, 5, 2, 8)
    torch._dynamo.reset()
    mine, theirs = leaves(x, y, *rows, q), leaves(x, y, *rows, q)
    compiled = torch.compile(block, backend=aot_autograd(fw_compiler=backend), fullgraph=True)
    found, expected = compiled(*mine), block(*theirs)
    assert all(map(torch.equal, found, expected))
    own = {name for name in seen if "reelweave" in name}
    assert len(own) == (0 if kernels is None else 3), own
    upstream = [torch.randn_like(one) for one in expected]
    for a, b in zip(gradients(found, upstream, mine), gradients(expected, upstream, theirs), strict=True):
        assert relative(a, b) < 1e-6


def test_under_autocast_the_type_is_that_of_the_activations():
    (x, y), rows, _, _ = case(dtype=torch.bfloat16, rows_dtype=torch.float32)
    expected = gate_residual_norm_modulate(x, y, *rows)
    with torch.autocast("cpu", torch.bfloat16):
        found = gate_residual_norm_modulate(x, y, *rows)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("form", FORMS)
def test_tensors_without_data_have_their_shapes(form):
    (x, y), rows, _, cu_seqlens = case(form)
    with FakeTensorMode() as mode:
        inputs = leaves(*map(mode.from_tensor, (x, y, *rows)))
        ends = None if cu_seqlens is None else mode.from_tensor(cu_seqlens)
        outs = gate_residual_norm_modulate(*inputs, cu_seqlens=ends)
        found = gradients(outs, [torch.empty_like(out) for out in outs], inputs)
    assert [out.shape for out in outs] == [x.shape] * 2
    assert [gradient.shape for gradient in found] == [tensor.shape for tensor in (x, y, *rows)]
