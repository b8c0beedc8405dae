"""The norm of queries and keys against its definition in float64, and as PyTorch sees it."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.qk_norm import operator as module
from reelweave.train.kernels.qk_norm.operator import qk_norm, qk_norm_backward, qk_norm_pair
from reelweave.train.kernels.shared.traffic import PairSize
from tests.thorough import beyond, but, thorough
from tests.train.kernels.kernel_cases import EPS, error, gradients, leaves, qk_norm_before
from tests.train.kernels.qk_cases import case, defined

HALF = (torch.bfloat16, torch.float16)
ROTATIONS = ("none", "half", "interleaved")


def both(made, numerics="fp32"):
    """Outputs and gradients of the operator, and of its definition in float64 for the same values."""
    (q, k), how = made
    weights = [how.get("weight_q"), how.get("weight_k")]
    rest = {name: value for name, value in how.items() if not name.startswith("weight")}
    inputs, wide = leaves(q, k, *weights), leaves(q, k, *weights, dtype=torch.float64)
    found, exact = qk_norm(*inputs, numerics=numerics, **rest), defined(*wide, **rest)
    draw = torch.Generator().manual_seed(9)
    upstream = [torch.randn(out.shape, generator=draw).to(out.dtype).transpose(1, 2) for out in found]
    upstream = [up.contiguous().transpose(1, 2) for up in upstream]
    return (
        [*found, *gradients(found, upstream, inputs)],
        [*exact, *gradients(exact, [up.double() for up in upstream], wide)],
    )


def worst(made, **how):
    return max(error(a, b) for a, b in zip(*both(made, **how), strict=True))


WEIGHTS = ("head", "all", "bare", "bare across")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("numerics", ["fp32", "eager"])
def test_every_kind_and_type_is_as_near_as_one_rounding(weights, rotation, dtype, numerics):
    made = case(L=37, H=3, d=24, dtype=dtype, weights=weights, rotation=rotation)
    limit = 1.5 * torch.finfo(dtype).eps if dtype in HALF else 40 * torch.finfo(dtype).eps
    assert worst(made, numerics=numerics) <= limit


@pytest.mark.parametrize("weights", ["head", "all"])
@pytest.mark.parametrize(
    "shape",
    [
        {"L": 1, "d": 128},
        {"L": 199, "H": 2, "d": 6},
        {"L": 9, "M": 4, "rotation": "none"},
        {"L": 9, "H": 4, "G": 1},
        {"per_sample": True},
        {"B": 1, "per_sample": True, "rotation": "interleaved"},
    ],
    ids=str,
)
def test_other_lengths_and_fewer_heads_of_keys(weights, shape):
    assert worst(case(weights=weights, **shape)) <= 40 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rotation", but(("interleaved",), ROTATIONS))
def test_gradcheck(weights, rotation):
    (q, k), how = case(L=3, H=2, d=4, G=1, dtype=torch.float64, weights=weights, rotation=rotation)
    tensors = leaves(q, k, how.pop("weight_q", None), how.pop("weight_k", None))
    given = [x for x in tensors if x is not None]

    def run(*inputs):
        return qk_norm(*(inputs if len(inputs) == 4 else (*inputs, None, None)), **how)

    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("rotation", ["none", "half"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
def test_eager_numerics_are_the_chain_of_operations_bit_for_bit(rotation, dtype):
    (q, k), how = case(L=37, H=3, d=24, M=37 if rotation == "half" else 11, dtype=dtype, rotation=rotation)
    weights = [how[name].to(torch.promote_types(dtype, torch.float32)) for name in ("weight_q", "weight_k")]
    mine, theirs = leaves(q, k, *weights), leaves(q, k, *weights)
    found = qk_norm(*mine, rotation=how.get("rotation"), numerics="eager")
    expected = qk_norm_before(*theirs, EPS, how.get("rotation"))
    # Gradients as attention gives them, head by head.
    upstream = [torch.randn_like(out.transpose(1, 2).contiguous()).transpose(1, 2) for out in found]
    all_found = [*found, *gradients(found, upstream, mine)]
    all_expected = [*expected, *gradients(expected, upstream, theirs)]
    assert all(map(torch.equal, all_found, all_expected))


def test_tokens_of_any_strides_are_taken_and_outputs_are_contiguous():
    (q, k), how = case()
    q_out, k_out = qk_norm(q, k, **how)
    assert q_out.is_contiguous()
    assert k_out.is_contiguous()
    sparse = torch.stack([q, q], dim=-1)[..., 0]
    by_head = k.transpose(1, 2).contiguous().transpose(1, 2)
    for a, b in zip(qk_norm(sparse, by_head, **how), (q_out, k_out), strict=True):
        assert torch.equal(a, b)


def test_float32_weights_of_half_activations_get_their_gradients_in_float32():
    (q, k), how = case(L=37, d=64, dtype=torch.bfloat16)
    how |= {name: how[name].float() + 1e-3 for name in ("weight_q", "weight_k")}
    found, exact = both(((q, k), how))
    assert [x.dtype for x in found[4:]] == [torch.float32] * 2
    assert max(map(error, found[4:], exact[4:])) <= 1e-6


def test_one_of_the_two_outputs_is_enough():
    (q, k), how = case(dtype=torch.float64)
    inputs = leaves(q, k)
    qk_norm(*inputs, **how)[0].sum().backward()
    exact = leaves(q, k)
    defined(*exact, **how)[0].sum().backward()
    torch.testing.assert_close(inputs[0].grad, exact[0].grad)
    assert not inputs[1].grad.any()


def test_gradients_of_shards_of_a_sequence_add_up():
    """What sequence parallelism rests on: of the weights, a rank has the sums over its own tokens."""
    (q, k), how = case(L=12, dtype=torch.float64)
    weights, rotation = (how["weight_q"], how["weight_k"]), how["rotation"]
    whole = leaves(q, k, *weights)
    expected = gradients(qk_norm(*whole, rotation=rotation), [torch.ones_like(q), torch.ones_like(k)], whole)
    shards = []
    for tokens in (slice(0, 5), slice(5, 12)):
        part = leaves(q[:, tokens], k[:, tokens], *weights)
        outs = qk_norm(*part, rotation=tuple(angles[tokens] for angles in rotation))
        shards.append(gradients(outs, [torch.ones_like(out) for out in outs], part))
    for number, exact in enumerate(expected):
        pieces = [shard[number] for shard in shards]
        torch.testing.assert_close(torch.cat(pieces, dim=1) if number < 2 else sum(pieces), exact)


def angles(*shape):
    return torch.zeros(shape), torch.zeros(shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"numerics": "fast"}, "eager or fp32"),
        ({"q_BLHd": torch.zeros(2, 6, 24)}, r"\[B, L, H, d\]"),
        ({"k_BMGd": torch.zeros(1, 6, 3, 8)}, r"\[B, M, G, d\]"),
        ({"k_BMGd": torch.zeros(2, 6, 3, 8).half()}, "of one type"),
        ({"weight_q": torch.ones(16)}, r"weight_q must be \[8\], of a head, or \[24\]"),
        ({"weight_q": torch.ones(8).half()}, "weight_q is torch.float16"),
        ({"weight_q": torch.ones(8), "weight_k": torch.ones(24)}, "both be of a head or both"),
        ({"weight_q": torch.ones(8), "across_heads": True}, "the weights are of a head"),
        ({"rotation": angles(6, 8)}, r"cos of the rotation must be \[6, 4\] or \[2, 6, 4\]"),
        ({"rotation": (torch.zeros(6, 4), torch.zeros(2, 6, 4))}, "differ in shape"),
        ({"rotation": angles(6, 4), "k_BMGd": torch.zeros(2, 5, 3, 8)}, "6 queries and 5 keys"),
        ({"rotation": tuple(x.double() for x in angles(6, 4))}, "float32, not torch.float64"),
        ({"rotation": tuple(x.requires_grad_() for x in angles(6, 4))}, "asks for a gradient"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change, words):
    arguments = {"q_BLHd": torch.zeros(2, 6, 3, 8), "k_BMGd": torch.zeros(2, 6, 3, 8)}
    with pytest.raises(UsageError, match=words):
        qk_norm(**arguments | change)


def test_an_odd_width_has_no_pairs():
    with pytest.raises(UsageError, match="even width"):
        qk_norm(torch.zeros(1, 2, 1, 5), torch.zeros(1, 2, 1, 5), rotation=angles(2, 2))


def test_of_a_single_head_both_kinds_of_weights_are_one():
    (q, k), how = case(H=3, G=1, weights="all", rotation="none")
    assert how["weight_k"].shape == (8,)
    assert worst(((q, k), how)) <= 40 * torch.finfo(torch.float32).eps
    (q, k), how = case(H=1, rotation="none")
    weights = how["weight_q"], how["weight_k"]
    alone, together = (qk_norm(q, k, *weights, across_heads=across)[0] for across in (False, True))
    torch.testing.assert_close(alone, together)


def raw(made):
    """What the registered operator takes."""
    (q, k), how = made
    cos, sin = how.get("rotation", (None, None))
    across = how["across_heads"]
    if across is None:
        across = len(how["weight_q"]) != q.shape[3]
    flags = EPS, bool(across), how.get("interleaved", False), "fp32"
    return (q, k), (how.get("weight_q"), how.get("weight_k"), cos, sin, *flags)


@thorough
@pytest.mark.parametrize(
    ("weights", "rotation"), beyond(1, [("bare", "interleaved"), ("head", "half"), ("all", "none")])
)
def test_opcheck(weights, rotation):
    (q, k), rest = raw(case(G=1, dtype=torch.bfloat16, weights=weights, rotation=rotation))
    q_out, k_out, *rstd = qk_norm_pair(q, k, *rest)
    torch.library.opcheck(qk_norm_pair, (*leaves(q, k), *rest))
    torch.library.opcheck(qk_norm_backward, (q_out, k_out, q, k, *rstd, *rest))


@thorough
def test_compiled_whole_it_gives_the_same_bits():
    torch._dynamo.reset()
    compiled = torch.compile(qk_norm, backend="aot_eager", fullgraph=True, dynamic=True)
    for L in (6, 12):
        (q, k), how = case(L=L)
        mine, theirs = leaves(q, k), leaves(q, k)
        found, expected = compiled(*mine, **how), qk_norm(*theirs, **how)
        upstream = [torch.randn_like(out) for out in expected]
        found = [*found, *gradients(found, upstream, mine)]
        expected = [*expected, *gradients(expected, upstream, theirs)]
        assert all(map(torch.equal, found, expected))


def test_under_autocast_the_type_is_that_of_the_queries():
    (q, k), how = case(dtype=torch.bfloat16)
    expected = qk_norm(q, k, **how)
    with torch.autocast("cpu", torch.bfloat16):
        found = qk_norm(q, k, **how)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("weights", ["head", "all"])
def test_tensors_without_data_have_their_shapes(weights):
    (q, k), how = case(G=1, weights=weights)
    with FakeTensorMode() as mode:
        q, k = leaves(*map(mode.from_tensor, (q, k)))
        weights = leaves(*(mode.from_tensor(how[name]) for name in ("weight_q", "weight_k")))
        outs = qk_norm(q, k, *weights, rotation=tuple(map(mode.from_tensor, how["rotation"])))
        found = gradients(outs, [torch.empty_like(out) for out in outs], [q, k, *weights])
    assert [out.shape for out in outs] == [q.shape, k.shape]
    assert [gradient.shape for gradient in found] == [x.shape for x in (q, k, *weights)]


def bytes_of(tensors):
    return sum(x.nbytes for x in tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weights", ["bare", "bare across"])
def test_bytes_are_those_of_the_tensors(dtype, weights):
    made = case(L=12, G=1, dtype=dtype, weights=weights)
    size = PairSize(24, 24, 3, 1, 8, dtype, across_heads=weights != "bare", rotated=12)
    (q, k), rest = raw(made)
    outs = qk_norm_pair(q, k, *rest)
    assert bytes_of([q, k, *made[1]["rotation"], *outs]) == module.bytes_moved(size)
    given = *outs[:2], q, k, *outs[2:], *made[1]["rotation"]
    found = qk_norm_backward(*outs[:2], q, k, *outs[2:], *rest)
    assert bytes_of([*given, *found]) == module.bytes_moved(size, backward=True)

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda x: x):
        qk_norm(*leaves(q, k), **made[1])
    assert bytes_of(kept) - bytes_of(made[1]["rotation"]) == module.saved_bytes(size)


def test_a_pair_of_channels_costs_eight_bytes_and_twelve():
    size = PairSize(1 << 15, 1 << 15, 12, 12, 128, torch.bfloat16, across_heads=True)
    pairs = (1 << 15) * 1536
    assert round(module.bytes_moved(size) / pairs, 1) == 8
    assert round(module.bytes_moved(size, backward=True) / pairs, 1) == 12
    assert round(module.saved_bytes(size) / pairs, 1) == 4
