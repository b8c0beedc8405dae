"""The arithmetic and indexing of the kernels, run on the processor against fp64."""

import ctypes
import os
import signal
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from reelweave.train.kernels.cuda.launch import Dtype
from tests.thorough import beyond, but, thorough
from tests.train.kernels.emulated import CSRC, TORCH_DTYPE, Emulated, Problem, build

# Half a unit in the last place of the type, and room for fp32 sums.

pytestmark = pytest.mark.toolchain

ONE_TEAM = 40 << 10
"""Shared memory in which a block has one row of 1544 columns at a time."""
ROUNDING: dict[Dtype, float] = {"f32": 2e-6, "bf16": 2**-8, "f16": 2**-11}


@pytest.fixture(scope="module")
def emulated(emulated_kernels: dict[str, ctypes.CDLL]) -> Emulated:
    return Emulated(
        {
            "layer_norm_modulate": emulated_kernels["layer_norm_modulate"],
            "gate_residual_norm_modulate": emulated_kernels["gate_residual_norm_modulate"],
        },
        emulated_kernels["reduce"],
    )


def problem(
    rows: int,
    dim: int,
    groups: int = 1,
    x: Dtype = "bf16",
    modulation: Dtype = "f32",
    affine: bool = False,
    gated: bool = False,
    **kwargs: object,
) -> Problem:
    random = torch.Generator().manual_seed(rows * dim + groups)

    def normal(*shape: int, dtype: Dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(TORCH_DTYPE[dtype])

    # Strided, as the six chunks of one projection are.
    scale_GD, shift_GD, gate_GD = normal(groups, 3 * dim, dtype=modulation).chunk(3, dim=1)
    return Problem(
        x_ND=normal(rows, dim, dtype=x) + 2,
        scale_GD=scale_GD,
        shift_GD=shift_GD,
        weight_D=normal(dim, dtype=modulation) if affine else None,
        bias_D=normal(dim, dtype=modulation) if affine else None,
        branch_ND=normal(rows, 2 * dim, dtype=x)[:, dim:] if gated else None,
        gate_GD=gate_GD if gated else None,
        **kwargs,
    )


def doubled(case: Problem) -> Problem:
    """The same numbers as fp64 leaves, so that the reference's gradients are not rounded."""
    tensors = {
        field.name: getattr(case, field.name).double().requires_grad_()
        for field in fields(case)
        if isinstance(getattr(case, field.name), torch.Tensor)
    }
    return replace(case, **tensors)


def check(emulated: Emulated, case: Problem) -> None:
    x, _ = case.names
    random = torch.Generator().manual_seed(7)
    dy_ND, dh_ND = (torch.randn(case.x_ND.shape, generator=random).to(case.x_ND.dtype) for _ in range(2))
    gated = case.branch_ND is not None
    h_ND, y_ND, _, _ = emulated.forward(case)
    exact = doubled(case)
    wanted_h_ND, wanted_y_ND = exact.reference(h_ND)
    close(h_ND, wanted_h_ND, ROUNDING[x])
    close(y_ND, wanted_y_ND, ROUNDING[x])
    loss = (wanted_y_ND * dy_ND.double()).sum() + (wanted_h_ND * dh_ND.double()).sum() * gated
    wanted = torch.autograd.grad(loss, exact.inputs())
    for got, expected in zip(emulated.backward(case, dy_ND, dh_ND if gated else None), wanted, strict=True):
        close(got, expected, ROUNDING[NAMES[got.dtype]])


NAMES = {dtype: name for name, dtype in TORCH_DTYPE.items()}


def close(got: torch.Tensor, wanted: torch.Tensor, rounding: float) -> None:
    if not wanted.numel():
        return
    wanted = wanted.detach().double()
    room = rounding * wanted.abs() + 4e-6 * wanted.abs().max()
    worst = ((got.detach().double() - wanted).abs() - room).max().item()
    assert worst <= 0, f"off by {worst} beyond rounding"


@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
@pytest.mark.parametrize("rms", [False, True], ids=["ln", "rms"])
@pytest.mark.parametrize(
    ("rows", "dim", "groups"), beyond(2, [(12, 1536, 2), (1, 760, 1), (37, 128, 1), (6, 3072, 3)])
)
def test_registers_agree_with_fp64(
    emulated: Emulated, rows: int, dim: int, groups: int, rms: bool, gated: bool
) -> None:
    check(emulated, problem(rows, dim, groups, rms=rms, gated=gated, affine=rows == 12))


@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
@pytest.mark.parametrize(
    ("x", "modulation"), [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f16", "f16"), ("f32", "f32")]
)
@pytest.mark.parametrize("dim", beyond(1, [1128, 5120, 5128]))
def test_every_type_in_every_register_class(
    emulated: Emulated, x: Dtype, modulation: Dtype, dim: int, gated: bool
) -> None:
    check(emulated, problem(7, dim, 1, x, modulation, affine=True, gated=gated))


@pytest.mark.parametrize(
    ("x", "modulation", "dim", "rms", "gated"),
    beyond(
        2,
        [
            ("bf16", "f32", 8200, False, True),
            ("f32", "f32", 8196, False, False),
            ("bf16", "f32", 8200, False, False),
            ("bf16", "bf16", 16384, True, True),
            ("f16", "f32", 12288, False, False),
            ("f16", "f16", 8208, True, True),
        ],
    ),
)
def test_clusters_agree_with_fp64_over_wide_rows(
    emulated: Emulated, x: Dtype, modulation: Dtype, dim: int, rms: bool, gated: bool
) -> None:
    """Parts of a row, the last of which may be smaller, in four blocks."""
    offsets = [0, 0, 3, 7]
    case = problem(7, dim, 3, x, modulation, affine=True, gated=gated, rms=rms, offsets=offsets)
    check(replace(emulated, resident=2), case)


@pytest.mark.parametrize("gated", [pytest.param(False, marks=thorough), True], ids=["norm", "gate"])
def test_clusters_take_modulation_of_every_row_and_blocks_of_many_rows(
    emulated: Emulated, gated: bool
) -> None:
    check(emulated, problem(5, 8200, 5, affine=True, gated=gated))
    check(replace(emulated, resident=1), problem(33, 8200, gated=gated))


@pytest.mark.parametrize("gated", [pytest.param(False, marks=thorough), True], ids=["norm", "gate"])
def test_clusters_give_the_same_bits_in_any_order_and_keep_precision_at_a_far_mean(
    emulated: Emulated, gated: bool
) -> None:
    case = problem(9, 8200, 3, x="f32", gated=gated)
    case = replace(case, x_ND=case.x_ND + 300)
    dy_ND = torch.randn(9, 8200, generator=torch.Generator().manual_seed(1))
    found = []
    for seed in range(2):
        runner = replace(emulated, seed=seed)
        found.append([*runner.forward(case), *runner.backward(case, dy_ND, dy_ND if gated else None)])
    for again in found[1:]:
        assert all(torch.equal(left, right) for left, right in zip(found[0], again, strict=True))
    h_ND, y_ND, *_ = found[0]
    assert (y_ND.double() - case.reference(h_ND)[1]).abs().max() < 5e-4


@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
@pytest.mark.parametrize(
    ("rows", "dim", "groups"), but([(37, 769, 1)], [(37, 769, 1), (6, 8200, 3), (24, 100, 24)])
)
def test_the_tiled_path_takes_any_columns(
    emulated: Emulated, rows: int, dim: int, groups: int, gated: bool
) -> None:
    check(replace(emulated, tiled=True), problem(rows, dim, groups, affine=True, gated=gated, rms=rows == 6))


@pytest.mark.parametrize("x", ["bf16", "f32"])
@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
@pytest.mark.parametrize("tiled", [False, True], ids=["registers", "tiled"])
def test_modulation_of_every_row(emulated: Emulated, tiled: bool, gated: bool, x: Dtype) -> None:
    check(replace(emulated, tiled=tiled), problem(21, 264, 21, x, affine=True, gated=gated))


@pytest.mark.parametrize("tiled", [False, True], ids=["registers", "tiled"])
@pytest.mark.parametrize("resident", beyond(1, [4, 1, 40]))
@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([0, 0, 5, 5, 5, 6, 29, 37, 37], id="ragged with empty groups"),
        pytest.param([0, 37], id="one"),
        pytest.param([0, 10, 20, 30, 37], id="even", marks=thorough),
        pytest.param([0, 0, 37], id="first empty", marks=thorough),
    ],
)
def test_packed_groups_at_any_split_into_blocks(
    emulated: Emulated, offsets: list[int], resident: int, tiled: bool
) -> None:
    case = problem(37, 128, len(offsets) - 1, affine=True, offsets=offsets, gated=True)
    check(replace(emulated, tiled=tiled, resident=resident), case)


@pytest.mark.parametrize("tiled", [False, True], ids=["registers", "tiled"])
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([0, 10, 20], [0, 10, 37]),
        ([0, 10, 2**30], [0, 10, 37]),
        ([0, 2**30, 37], [0, 37, 37]),
        ([0, -(2**30), 37], [0, 0, 37]),
    ],
    ids=["ends early", "ends late", "middle beyond the end", "middle before the start"],
)
def test_wrong_offsets_reach_nothing_beyond_the_rows(
    emulated: Emulated, given: list[int], taken: list[int], tiled: bool
) -> None:
    """Nothing on a GPU can refuse them, so groups end where the rows end."""
    runner = replace(emulated, tiled=tiled)
    wrong, right = (problem(37, 128, 2, affine=True, offsets=one, gated=True) for one in (given, taken))
    dy_ND = torch.randn(37, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    pairs = [
        *zip(runner.forward(wrong), runner.forward(right), strict=True),
        *zip(runner.backward(wrong, dy_ND, dy_ND), runner.backward(right, dy_ND, dy_ND), strict=True),
    ]
    assert all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize(("rows", "dim"), beyond(1, [(199, 256), (1024, 64)]))
def test_many_rows(emulated: Emulated, rows: int, dim: int) -> None:
    check(replace(emulated, resident=12), problem(rows, dim, 1, x="f32"))


@pytest.mark.parametrize(
    ("gated", "rms"), beyond(1, [(True, False), (False, True)]), ids=["gate-ln", "norm-rms"]
)
def test_blocks_of_more_rows_than_a_warp_has_lanes(emulated: Emulated, gated: bool, rms: bool) -> None:
    case = problem(101, 1544, 4, offsets=[0, 31, 33, 33, 101], gated=gated, rms=rms, affine=True)
    check(replace(emulated, resident=1), case)
    check(replace(emulated, resident=1, shared_limit=ONE_TEAM), case)


def test_no_rows_give_zero_gradients(emulated: Emulated) -> None:
    case = problem(0, 128, 2, offsets=[0, 0, 0])
    _, dscale_GD, dshift_GD = emulated.backward(case, torch.empty(0, 128, dtype=torch.bfloat16))
    assert not dscale_GD.any()
    assert not dshift_GD.any()


def test_a_residual_without_a_gate_and_without_a_later_gradient(emulated: Emulated) -> None:
    case = replace(problem(9, 256, gated=True), gate_GD=None)
    check(emulated, case)
    dy_ND = torch.ones(9, 256, dtype=torch.bfloat16)
    absent = emulated.backward(case, dy_ND, None)
    zero = emulated.backward(case, dy_ND, torch.zeros_like(dy_ND))
    assert all(torch.equal(left, right) for left, right in zip(absent, zero, strict=True))


@pytest.mark.parametrize("dim", [512, 3080])
@pytest.mark.parametrize("tiled", [False, True], ids=["registers", "tiled"])
def test_a_far_mean_costs_no_precision(emulated: Emulated, tiled: bool, dim: int) -> None:
    case = problem(4, dim, x="f32")
    case = replace(case, x_ND=case.x_ND + 300)
    _, y_ND, _, _ = replace(emulated, tiled=tiled).forward(case)
    _, wanted_ND = case.reference(case.x_ND)
    # x itself is known to 300 * 2**-24 only; a one-pass E[x^2] - mean^2 is off by 1e-2 here.
    assert (y_ND.double() - wanted_ND).abs().max() < 5e-4


def test_gradients_have_the_same_bits_whatever_order_threads_and_blocks_run_in(emulated: Emulated) -> None:
    case = problem(37, 768, 5, offsets=[0, 3, 3, 20, 31, 37], affine=True, gated=True)
    dy_ND = torch.randn(37, 768, generator=torch.Generator().manual_seed(1)).bfloat16()
    runs = [replace(emulated, seed=seed).backward(case, dy_ND, dy_ND) for seed in range(5)]
    assert all(
        torch.equal(left, right) for again in runs[1:] for left, right in zip(runs[0], again, strict=True)
    )


@pytest.mark.parametrize("tiled", [False, True], ids=["registers", "tiled"])
def test_rows_beyond_two_billion_elements(emulated: Emulated, tiled: bool, tmp_path: Path) -> None:
    stride = 2**30 + 64
    sparse = torch.from_file(str(tmp_path / "x"), shared=True, size=2 * stride + 128, dtype=torch.bfloat16)
    case = problem(3, 128)
    far_ND = sparse.as_strided((3, 128), (stride, 1))
    far_ND.copy_(case.x_ND)
    runner = replace(emulated, tiled=tiled)
    assert torch.equal(runner.forward(replace(case, x_ND=far_ND))[1], runner.forward(case)[1])


MUTANT = """
#include "instances.cuh"
REEL_INSTANCES(layer_norm_modulate, false, bf16, __nv_bfloat16, f32, float)
"""
# The source with one line taken away or changed, and what it must break.
MUTANTS = {
    "no barrier in the sum": ("    meet_team();\n    const float2 part", "    const float2 part"),
    "one buffer for two rows": ("sums[turn % 2]", "sums[0]"),
    "no barrier in the forward's sums": (
        "    }\n    __syncthreads();\n#pragma unroll",
        "    }\n#pragma unroll",
    ),
    "one buffer for both sums": ("block_sums<kLanes>(rstd, sums[1])", "block_sums<kLanes>(rstd, sums[0])"),
    "squares around zero": (
        "fmaf(value[i] - mean[r], value[i] - mean[r], rstd[r])",
        "fmaf(value[i], value[i], rstd[r])",
    ),
    "a wait too short": ("wait_for_copies<Rows::kStages - 1>()", "wait_for_copies<Rows::kStages>()"),
    "a slot for two groups": ("(TOKEN ? 0 : cursor.group)", "0"),
    "no new group": ("if constexpr (!TOKEN) start_group();", ""),
    "modulation of the first group alone": ("= group_of(args.groups, first);", "= 0;"),
    "two rows' modulation of the first one's group": ("if (r > 0 && apart) load", "if (false) load"),
    "the second row of a block in the first one's place": (
        "y) + first * args.dim",
        "y) + blockIdx.x * args.dim",
    ),
    "statistics of the first lanes alone": ("if (turn % kWarp == 0) statistics", "if (turn == 0) statistics"),
    "statistics of another row": ("lane_rstd, turn % kWarp)", "lane_rstd, (turn + 1) % kWarp)"),
    "a row copied to another's place": ("vector(stage, stream * VECS + v)", "vector(stage, v)"),
    "rows that stay where they are": ("x.next(), dy_rows.next(),", "dy_rows.next(),"),
    "one ring for all teams": ("shared + team * Rows::kVectors", "shared + 0 * Rows::kVectors"),
    "one place for the sums of all teams": ("buffer += threadIdx.y * (blockDim.x / kWarp);", ""),
    "the sums of the last team alone": ("if (turn > 0) add_row", "if (false) add_row"),
    "teams that add at once": ("if (teams > 1) __syncthreads();", ""),
    "statistics of the block's next rows": (
        "lane_rstd = args.rstd[row + lane * by]",
        "lane_rstd = args.rstd[row + lane]",
    ),
}
# Of every kind one: barriers, rounding, groups, copies and teams.
ALWAYS = (
    "no barrier in the sum",
    "squares around zero",
    "modulation of the first group alone",
    "a row copied to another's place",
    "the sums of the last team alone",
)

# Those of clusters, which wide rows must show.
WIDE_MUTANTS = {
    "no wait for the other blocks": (
        "        wait_for_arrivals(&mine.arrivals[buffer], turn / 2 % 2);\n",
        "",
    ),
    "a wait for the turn before": ("turn / 2 % 2", "(turn / 2 + 1) % 2"),
    "one buffer for two rows of a cluster": ("to + buffer * sizeof(mine.parts[0])", "to"),
    "every block in the first one's place": ("slot = cluster_rank() * (blockDim.x / kWarp) + ", "slot = "),
    "fewer parts than there are": ("all * sizeof(float2)", "(all - 1) * sizeof(float2)"),
    "the first block's columns in all": ("begin = cluster_rank() * part(), ", ""),
    "a cluster's rows by its blocks": (
        "const i64 block = blockIdx.x / BLOCKS,",
        "const i64 block = blockIdx.x,",
    ),
}
WIDE_ALWAYS = ("no wait for the other blocks", "every block in the first one's place")


FOUND = 3


def broken(mutant: tuple[str, str], emulated: Emulated, folder: Path) -> Emulated:
    """The norm's kernels from a source that was changed."""
    old, new = mutant
    broken = 0
    for header in CSRC.glob("*.cuh"):
        text = header.read_text()
        broken += text.count(old)
        (folder / header.name).write_text(text.replace(old, new))
    assert broken
    source = folder / "mutant.cu"
    source.write_text(MUTANT)
    return replace(emulated, kernels={**emulated.kernels, "layer_norm_modulate": build(source, folder)})


@pytest.mark.parametrize("mutant", but(WIDE_ALWAYS, WIDE_MUTANTS, ()))
def test_the_emulator_sees_what_is_broken_in_a_cluster(
    emulated: Emulated, mutant: str, tmp_path: Path
) -> None:
    mutated = broken(WIDE_MUTANTS[mutant], emulated, tmp_path)
    # The emulator aborts where blocks wait for each other for ever, so a process of its own takes the fault.
    child = os.fork()
    if not child:
        status = 1
        try:
            check(replace(mutated, resident=2), problem(9, 8200, 2, offsets=[0, 3, 9]))
        except AssertionError as error:
            status = FOUND if "beyond rounding" in str(error) else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (FOUND, -signal.SIGABRT)


@pytest.mark.parametrize("mutant", but(ALWAYS, MUTANTS, ()))
def test_the_emulator_sees_what_is_broken(emulated: Emulated, mutant: str, tmp_path: Path) -> None:
    mutated = broken(MUTANTS[mutant], emulated, tmp_path)
    with pytest.raises(AssertionError, match="beyond rounding"):
        check(mutated, problem(37, 1544, 4, offsets=[0, 3, 20, 31, 37]))
        check(replace(mutated, resident=1), problem(37, 1544, 4, offsets=[0, 3, 20, 31, 37]))
        check(replace(mutated, resident=1, shared_limit=ONE_TEAM), problem(37, 1544))
