"""The kernels for queries and keys, run on the processor against fp64."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reelweave.train.kernels.cuda import host_qk
from reelweave.train.kernels.cuda.launch import Dtype
from tests.thorough import but
from tests.train.kernels.emulated import CSRC, NAME, TORCH_DTYPE, build, cuda_headers
from tests.train.kernels.emulated_qk import EmulatedPair, Pair
from tests.train.kernels.kernel_cases import leaves
from tests.train.kernels.qk_cases import case, defined
from tests.train.kernels.test_csrc_math import ROUNDING, close

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def emulated(emulated_kernels: dict[str, ctypes.CDLL]) -> EmulatedPair:
    return EmulatedPair(emulated_kernels["qk_norm"])


def pair(x: Dtype = "bf16", weight: Dtype | None = None, **shape: object) -> Pair:
    """A problem of `qk_cases.case`, its weights of type `weight`."""
    (q, k), how = case(dtype=TORCH_DTYPE[x], **shape)
    weights = [how.get(name) for name in ("weight_q", "weight_k")]
    if weight is not None:
        weights = [w.to(TORCH_DTYPE[weight]) for w in weights]
    across = how["across_heads"]
    if across is None:
        across = shape["weights"] == "all"
    return Pair(q, k, *weights, how.get("rotation"), across, how.get("interleaved", False))


def upstream(problem: Pair) -> list[torch.Tensor]:
    """As attention gives gradients, head by head."""
    draw = torch.Generator().manual_seed(3)
    shapes = [x.transpose(1, 2).shape for x, _ in problem.sides()]
    return [torch.randn(s, generator=draw).to(problem.q_BLHd.dtype).transpose(1, 2) for s in shapes]


def check(emulated: EmulatedPair, problem: Pair) -> None:
    wide = leaves(*(side[i] for i in (0, 1) for side in problem.sides()), dtype=torch.float64)
    exact = defined(*wide, problem.rotation, problem.across_heads, problem.interleaved)
    outs, statistics = emulated.forward(problem)
    up = upstream(problem)
    given = [x for x in wide if x is not None]
    wanted = [*exact, *torch.autograd.grad(exact, given, [dy.double() for dy in up])]
    gradients, of_weights = emulated.backward(problem, up, statistics)
    found = [*outs, *gradients, *(dweight for dweight in of_weights if dweight is not None)]
    for got, expected in zip(found, wanted, strict=True):
        close(got, expected, ROUNDING[NAME[got.dtype]])


KINDS = [("head", "none"), ("head", "half"), ("all", "half"), ("all", "interleaved"), ("bare", "interleaved")]


@pytest.mark.parametrize(("weights", "rotation"), KINDS)
@pytest.mark.parametrize(
    ("x", "weight"), [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f16", "f16"), ("f32", "f32")]
)
def test_every_kind_in_every_type(
    emulated: EmulatedPair, weights: str, rotation: str, x: Dtype, weight: Dtype
) -> None:
    made = pair(
        x, None if weights == "bare" else weight, B=2, L=19, H=3, d=64, weights=weights, rotation=rotation
    )
    check(emulated, made)


@pytest.mark.parametrize("weights", ["head", "all"])
@pytest.mark.parametrize(
    ("rotation", "d"),
    but(
        [("half", 96), ("interleaved", 72)],
        [("half", 32), ("half", 96), ("half", 256), ("interleaved", 72), ("none", 40)],
    ),
)
@pytest.mark.parametrize(("x", "L"), [("bf16", 1), ("f32", 37)])
def test_widths_of_heads_also_those_that_leave_lanes_idle(
    emulated: EmulatedPair, weights: str, rotation: str, d: int, x: Dtype, L: int
) -> None:
    check(emulated, pair(x, "f32", B=1, L=L, H=5, d=d, weights=weights, rotation=rotation))


@pytest.mark.parametrize("weights", ["head", "all", "bare across"])
@pytest.mark.parametrize(
    "shape",
    [
        {"B": 2, "L": 9, "M": 21, "rotation": "none"},
        {"B": 2, "L": 9, "H": 8, "G": 2},
        {"B": 1, "L": 9, "H": 1, "G": 4},
        {"B": 3, "L": 5, "per_sample": True},
        {"B": 40, "L": 1},
    ],
    ids=["other lengths", "fewer heads of keys", "more heads of keys", "angles by sample", "one token each"],
)
def test_queries_and_keys_of_different_shapes(
    emulated: EmulatedPair, weights: str, shape: dict[str, object]
) -> None:
    check(emulated, pair("bf16", d=32, weights=weights, **shape))


@pytest.mark.parametrize("weights", ["head", "all"])
@pytest.mark.parametrize("resident", [1, 4, 80])
def test_many_tokens_at_any_split_into_blocks(emulated: EmulatedPair, weights: str, resident: int) -> None:
    check(replace(emulated, resident=resident), pair("f32", B=1, L=199, H=2, d=32, weights=weights))


@pytest.mark.parametrize(("x", "H", "d"), [("bf16", 64, 128), ("f32", 40, 128)])
@pytest.mark.parametrize("weights", ["head", "all"])
def test_the_widest_rows(emulated: EmulatedPair, weights: str, x: Dtype, H: int, d: int) -> None:
    check(emulated, pair(x, B=1, L=3, H=H, d=d, weights=weights, rotation="interleaved"))


def test_no_keys_give_their_weight_the_gradient_zero(emulated: EmulatedPair) -> None:
    made = pair(B=1, L=4, H=2, d=32, weights="head", rotation="none")
    made = replace(made, k_BMGd=made.k_BMGd[:, :0])
    _, (_, dweight_k) = emulated.backward(made, upstream(made), emulated.forward(made)[1])
    assert dweight_k is not None
    assert not dweight_k.any()


def test_a_weight_of_queries_alone(emulated: EmulatedPair) -> None:
    check(emulated, replace(pair(L=7, H=2, d=32, weights="head"), weight_k=None))


@pytest.mark.parametrize("weights", ["head", "all"])
def test_gradients_have_the_same_bits_whatever_order_threads_and_blocks_run_in(
    emulated: EmulatedPair, weights: str
) -> None:
    made = pair(B=1, L=37, H=6, d=64, weights=weights)
    runs = []
    for seed in range(4):
        runner = replace(emulated, seed=seed)
        gradients, of_weights = runner.backward(made, upstream(made), runner.forward(made)[1])
        runs.append([*gradients, *of_weights])
    assert all(torch.equal(a, b) for again in runs[1:] for a, b in zip(runs[0], again, strict=True))


@pytest.mark.parametrize("stride", ["token", "head"])
def test_strides_beyond_two_billion_elements(emulated: EmulatedPair, stride: str, tmp_path: Path) -> None:
    far = 2**30 + 64
    sparse = torch.from_file(str(tmp_path / "x"), shared=True, size=2 * far + 512, dtype=torch.bfloat16)
    made = pair(B=1, L=3, H=3, d=32, weights="head")
    strides = (0, far, 64, 1) if stride == "token" else (0, 64, far, 1)
    far_BLHd = sparse.as_strided(made.q_BLHd.shape, strides)
    far_BLHd.copy_(made.q_BLHd)
    outs, _ = emulated.forward(replace(made, q_BLHd=far_BLHd))
    assert all(map(torch.equal, outs, emulated.forward(made)[0]))


# The source with one place changed, and the kind of norm that must show it.
MUTANTS = {
    "no barrier in the sum": (
        "    __syncthreads();\n    return warp_sum<LANES>(",
        "    return warp_sum<LANES>(",
        "all",
    ),
    "one buffer for two rows": ("sums[turn % 2]", "sums[0]", "all"),
    "a wait too short": ("wait_for_copies<Rows::kStages - 1>()", "wait_for_copies<Rows::kStages>()", "head"),
    "a neighbour's sample": ("(over ? wrap[i] : 0)", "0", "head"),
    "warps that do not meet": (
        "        __syncthreads();\n        for (int column",
        "        for (int column",
        "head",
    ),
}
ALWAYS = ("one buffer for two rows", "a neighbour's sample")


@pytest.mark.parametrize("mutant", but(ALWAYS, MUTANTS, ()))
def test_the_emulator_sees_what_is_broken(mutant: str, tmp_path: Path) -> None:
    cuda_headers()
    old, new, weights = MUTANTS[mutant]
    broken = 0
    for header in CSRC.glob("*.cuh"):
        text = header.read_text()
        broken += text.count(old)
        (tmp_path / header.name).write_text(text.replace(old, new))
    assert broken
    source = tmp_path / "mutant.cu"
    source.write_text(
        (CSRC / "qk_norm.cu").read_text().split("REEL_QK_TYPE(bf16")[0]
        + f"REEL_QK_KIND({'across, true' if weights == 'all' else 'head, false'}, bf16, __nv_bfloat16)\n"
        "REEL_KERNEL(qk_norm_weights_f32, reel::QkReduceArgs, (512), reel::qk_norm_weights<float>)\n"
    )
    with pytest.raises(AssertionError, match="beyond rounding"):
        check(
            EmulatedPair(build(source, tmp_path)), pair("bf16", "f32", B=3, L=12, H=12, d=64, weights=weights)
        )


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("x", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(
    ("heads", "width"), [(12, 128), (24, 128), (40, 128), (64, 128), (16, 72), (3, 32), (30, 256)]
)
def test_the_block_covers_the_row(heads: int, width: int, x: Dtype, across: bool) -> None:
    found = host_qk.pair_launch("backward", heads, width, x, across, False, True, 163 << 10)
    assert found is not None
    vectors, pairs = width * host_qk.DTYPE_BYTES[x] // 16, 2 if x == "f32" else 1
    assert 2 * found.lanes >= vectors
    assert heads * found.lanes <= found.threads * pairs < heads * found.lanes + 32 * pairs
    assert across or 32 % found.lanes == 0


@pytest.mark.parametrize(
    "change",
    [{"aligned": False}, {"width": 68}, {"width": 72}, {"heads": 65}, {"width": 1024, "heads": 1}],
    ids=["unaligned", "no whole vectors", "halves that cut a vector", "too wide", "a head beyond a warp"],
)
def test_what_the_kernels_do_not_serve_is_said(change: dict[str, object]) -> None:
    known = {
        "heads": 12,
        "width": 128,
        "x": "bf16",
        "across_heads": False,
        "halves_rotate": True,
        "aligned": True,
    }
    assert host_qk.pair_launch("forward", **known, shared_limit=163 << 10) is not None
    assert host_qk.pair_launch("forward", **known | change, shared_limit=163 << 10) is None


@pytest.mark.parametrize(("q_rows", "k_rows"), [(1, 1), (64_000, 512), (0, 9), (131, 133), (8192, 8192)])
def test_no_more_blocks_than_fit(q_rows: int, k_rows: int) -> None:
    per_block = host_qk.rows_per_block(q_rows, k_rows, 132)
    assert host_qk.launch.blocks(q_rows, per_block) + host_qk.launch.blocks(k_rows, per_block) <= 132
