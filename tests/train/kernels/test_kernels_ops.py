"""The operators against their definition in float64: outputs, gradients, shapes, types, refusals."""

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.gate_norm_modulate import operator as gated
from reelweave.train.kernels.gate_norm_modulate.operator import gate_residual_norm_modulate
from reelweave.train.kernels.norm_modulate import operator as plain
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate
from reelweave.train.kernels.qk_norm.operator import qk_norm, qk_norm_pair
from reelweave.train.kernels.shared.traffic import Size
from tests.thorough import beyond
from tests.train.kernels import kernel_cases as cases
from tests.train.kernels.kernel_cases import FORMS, case, defined, defined_gated, error, gradients, leaves

HALF = (torch.bfloat16, torch.float16)


def both(op, made, rms=False, numerics="fp32", dtype=None):
    """Outputs and gradients of an operator, and of its definition in float64 for the same values."""
    (x, y), (gate, scale, shift), (weight, bias), cu_seqlens = made
    how = {"rms": rms, "cu_seqlens": cu_seqlens}
    tensors = (x, scale, shift) if op == "plain" else (x, y, gate, scale, shift)
    function = layer_norm_modulate if op == "plain" else gate_residual_norm_modulate
    definition = defined if op == "plain" else defined_gated

    inputs = leaves(*tensors, weight, bias)
    found = function(*inputs[:-2], weight_D=inputs[-2], bias_D=inputs[-1], numerics=numerics, **how)
    found = (found,) if op == "plain" else found
    torch.manual_seed(9)
    upstream = [torch.randn_like(out) for out in found]
    wide = leaves(*tensors, weight, bias, dtype=torch.float64)
    exact = definition(*wide, **how)
    exact = (exact,) if op == "plain" else exact
    return (
        [*found, *gradients(found, upstream, inputs)],
        [*exact, *gradients(exact, [up.double() for up in upstream], wide)],
    )


def worst(op, made, **how):
    return max(error(a, b) for a, b in zip(*both(op, made, **how), strict=True))


@pytest.mark.parametrize("op", ["plain", "gated"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("L", "D"), [(1, 760), (37, 1128), (199, 1536), (37, 3072)])
def test_odd_shapes_in_float32_are_exact_to_rounding(op, form, L, D):
    made = case(form, L=L, D=D, frames=L if L != 37 else 1)
    assert worst(op, made) <= 40 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("op", ["plain", "gated"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("affine", [False, True], ids=["bare", "affine"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("numerics", ["fp32", "eager"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_every_mode_and_type_is_as_near_as_its_rounding(op, form, affine, rms, numerics, dtype):
    made = case(form, L=36, D=64, frames=3, dtype=dtype, affine=affine)
    roundings = 3 if numerics == "fp32" else 16
    limit = roundings * torch.finfo(dtype).eps if dtype in HALF else 40 * torch.finfo(dtype).eps
    assert worst(op, made, rms=rms, numerics=numerics) <= limit


@pytest.mark.parametrize("op", ["plain", "gated"])
@pytest.mark.parametrize("dtype", HALF)
def test_a_float32_modulation_of_half_activations_keeps_its_bits(op, dtype):
    made = case("frame", L=36, D=64, dtype=dtype, rows_dtype=torch.float32)
    found, exact = both(op, made)
    rows = [(a, b) for a, b in zip(found, exact, strict=True) if a.dtype == torch.float32]
    assert len(rows) == (2 if op == "plain" else 3)
    # h is rounded before its statistics, so only the plain operator is exact to float32.
    limit = 1e-5 if op == "plain" else torch.finfo(dtype).eps
    assert max(error(a, b) for a, b in rows) <= limit


@pytest.mark.parametrize("op", beyond(1, ["gated", "plain"]))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rms", beyond(1, [False, True]), ids=["layer", "rms"])
def test_gradcheck(op, form, rms):
    (x, y), rows, affine, cu_seqlens = case(form, B=2, L=4, D=3, frames=2, dtype=torch.float64, affine=True)
    tensors = leaves(x, *rows[1:], *affine) if op == "plain" else leaves(x, y, *rows, *affine)
    function = layer_norm_modulate if op == "plain" else gate_residual_norm_modulate

    def run(*inputs):
        *inputs, weight, bias = inputs
        return function(*inputs, rms=rms, weight_D=weight, bias_D=bias, cu_seqlens=cu_seqlens)

    for numerics in ("fp32", "eager"):
        assert torch.autograd.gradcheck(run, tensors), numerics


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_eager_numerics_are_the_chain_of_operations_bit_for_bit(dtype):
    (x, y), (gate, scale, shift), _, _ = case(L=37, D=760, dtype=dtype)
    mine, theirs = leaves(x, y, gate, scale, shift), leaves(x, y, gate, scale, shift)
    found = gate_residual_norm_modulate(*mine, numerics="eager")
    h = cases.gate_residual_before(theirs[0], theirs[1], theirs[2])
    expected = h, cases.modulate_before(h, theirs[4], theirs[3])
    upstream = [torch.randn_like(h) for _ in range(2)]
    all_found = [*found, *gradients(found, upstream, mine)]
    all_expected = [*expected, *gradients(expected, upstream, theirs)]
    assert all(map(torch.equal, all_found, all_expected))


def test_a_gradient_of_only_one_of_the_outputs_is_enough():
    (x, y), rows, _, _ = case(dtype=torch.float64)
    for used in (0, 1):
        found, exact = leaves(x, y, *rows), leaves(x, y, *rows)
        gate_residual_norm_modulate(*found)[used].sum().backward()
        defined_gated(*exact, None, None, None)[used].sum().backward()
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a.grad, torch.zeros_like(b) if b.grad is None else b.grad)


def test_tokens_of_any_strides_are_taken():
    (x, _), (_, scale, shift), _, _ = case(L=6, D=8)
    y = layer_norm_modulate(x, scale, shift)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    sparse = torch.stack([x, x], dim=-1)[..., 0]
    assert not turned.is_contiguous()
    torch.testing.assert_close(layer_norm_modulate(turned, scale, shift), y)
    torch.testing.assert_close(layer_norm_modulate(sparse, scale, shift), y)


def test_a_gradient_that_is_expanded_is_taken():
    (x, _), (_, scale, shift), _, _ = case(dtype=torch.float64)
    a, b = leaves(x, scale, shift), leaves(x, scale, shift)
    layer_norm_modulate(*a).sum().backward()
    defined(*b, None, None, None).sum().backward()
    torch.testing.assert_close([t.grad for t in a], [t.grad for t in b])


def test_a_group_without_tokens_has_the_gradient_zero():
    (x, _), (_, scale, shift), _, cu_seqlens = case("packed", L=9)
    assert cu_seqlens[1] == cu_seqlens[2]
    for numerics in ("fp32", "eager"):
        inputs = leaves(x, scale, shift)
        layer_norm_modulate(*inputs, cu_seqlens=cu_seqlens, numerics=numerics).sum().backward()
        assert [bool(row.any()) for row in inputs[2].grad] == [True, False, True, True]


@pytest.mark.parametrize("form", FORMS)
def test_two_backward_runs_give_the_same_bits(form):
    made = case(form, L=198, D=96, frames=9, dtype=torch.bfloat16)
    for numerics in ("fp32", "eager"):
        first, second = (both("gated", made, numerics=numerics)[0] for _ in range(2))
        assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("numerics", ["fp32", "eager"])
def test_a_large_mean_costs_no_more_than_its_rounding(numerics):
    """One pass over squares would lose 8e-3 of the deviation here."""
    (x, _), (_, scale, shift), _, _ = case(L=32, D=512)
    x = x + 600
    exact = defined(x.double(), scale.double(), shift.double(), None, None, None)
    assert error(layer_norm_modulate(x, scale, shift, numerics=numerics), exact) <= 1e-4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": torch.zeros(3, 8)}, "shift must have shape and type of scale"),
        ({"scale": torch.zeros(3, 8), "shift": torch.zeros(3, 8)}, "B = 2"),
        ({"scale": torch.zeros(2, 4, 8), "shift": torch.zeros(2, 4, 8)}, "6 tokens .* 4 frames"),
        ({"scale": torch.zeros(2, 4), "shift": torch.zeros(2, 4)}, "4 wide and x 8"),
        ({"scale": torch.zeros(2, 8).half(), "shift": torch.zeros(2, 8).half()}, "float16"),
        ({"numerics": "fast"}, "eager or fp32"),
        ({"weight_D": torch.ones(1)}, r"weight must be \[8\]"),
        ({"x_BLD": torch.zeros(6, 8)}, r"\[B, L, D\]"),
        ({"cu_seqlens": torch.tensor([0, 2, 6])}, "with cu_seqlens"),
        ({"x_BLD": torch.zeros(1, 6, 8), "cu_seqlens": torch.tensor([0, 2, 5])}, "rise from 0 to the 6"),
        ({"x_BLD": torch.zeros(1, 6, 8), "cu_seqlens": torch.tensor([0.0, 2, 6])}, "int32 or int64"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change, words):
    arguments = {"x_BLD": torch.zeros(2, 6, 8), "scale": torch.zeros(2, 8), "shift": torch.zeros(2, 8)}
    with pytest.raises(UsageError, match=words):
        layer_norm_modulate(**arguments | change)


def bytes_of(tensors):
    return sum(x.nbytes for x in tensors if x is not None)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", ["sample", "frame", "token"])
def test_bytes_are_those_of_the_tensors(form, dtype, rms):
    (x, y), rows, _, _ = case(form, L=12, D=16, dtype=dtype, rows_dtype=torch.float32)
    gate, scale, shift = rows
    size = Size(24, 16, dtype, scale.numel() // 16, torch.float32, rms)
    flags = (None, None, None, 1e-6, rms, "fp32")

    outs = plain.norm_modulate(x, scale, shift, *flags)
    assert bytes_of([x, scale, shift, *outs]) == plain.bytes_moved(size)
    given = (outs[0], x, *outs[1:], scale)
    assert bytes_of(given + plain.norm_modulate_backward(*given, *flags)) == plain.bytes_moved(size, True)

    outs = gated.gate_norm_modulate(x, y, *rows, *flags)
    assert bytes_of([x, y, *rows, *outs]) == gated.bytes_moved(size)
    given = (x, x, outs[0], y, *outs[2:], gate, scale)
    assert bytes_of(given + gated.gate_norm_modulate_backward(*given, *flags)) == gated.bytes_moved(
        size, True
    )


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("op", ["plain", "gated"])
def test_kept_bytes_are_those_of_the_kept_tensors(op, rms):
    (x, y), rows, _, _ = case("frame", L=12, D=16, dtype=torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda x: x):
        if op == "plain":
            layer_norm_modulate(*leaves(x, *rows[1:]), rms=rms)
        else:
            gate_residual_norm_modulate(*leaves(x, y, *rows), rms=rms)
    module = plain if op == "plain" else gated
    assert bytes_of(kept) == module.saved_bytes(Size(24, 16, torch.bfloat16, 6, torch.bfloat16, rms))


@pytest.mark.parametrize("traced", [False, True], ids=["called", "traced"])
@pytest.mark.parametrize("op", ["plain", "gated", "qk"])
def test_a_second_derivative_is_refused(op, traced):
    """Statistics are kept as constants, so a gradient's gradient would lack their part (3.40 for 5.20)."""
    x, y = (torch.randn(1, 4, 8, requires_grad=True) for _ in range(2))
    row = torch.zeros(1, 8)
    if op == "qk":
        heads, rest = (
            (x.view(1, 4, 1, 8), y.view(1, 4, 1, 8)),
            (None, None, None, None, 1e-6, False, False, "fp32"),
        )
        out = qk_norm_pair(*heads, *rest) if traced else qk_norm(*heads)
    else:
        rows = (row, row) if op == "plain" else (row, row, row)
        tokens = (x,) if op == "plain" else (x, y)
        operator = plain.norm_modulate if op == "plain" else gated.gate_norm_modulate
        direct = layer_norm_modulate if op == "plain" else gate_residual_norm_modulate
        out = (
            operator(*tokens, *rows, None, None, None, 1e-6, False, "fp32")
            if traced
            else direct(*tokens, *rows)
        )
    total = sum(
        one.square().sum() for one in (out if isinstance(out, tuple) else (out,)) if one.requires_grad
    )
    (slope,) = torch.autograd.grad(total, x, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"once_differentiable|no autograd formula"):
        slope.square().sum().backward()
