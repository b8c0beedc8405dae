"""The benchmark of the fused operators, tried out on a CPU with the references in a provider's place."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.pipelines.benchmarks.kernel_cases import (
    GateNormModulate,
    KernelCase,
    NormModulate,
    Pair,
    QkNorm,
)
from reelweave.pipelines.benchmarks.kernel_goals import BF16, COMPILED, FP32, GoalRow, goals
from reelweave.pipelines.benchmarks.kernels import CASES, OPERATORS, PAIRS, PAPER, TRIAL, Plan, bench_kernels
from reelweave.train.kernels.eager import EAGER
from reelweave.train.kernels.norm_modulate import reference as norm_modulate
from tests.thorough import thorough

CPU = torch.device("cpu")
F32 = torch.float32
SMALL = (
    KernelCase(2, 12, 16, dtype=F32),
    KernelCase(2, 12, 16, "frame", 3, F32),
    KernelCase(2, 12, 16, "token", 12, F32),
    KernelCase(1, 12, 16, "packed", 4, F32),
)
SMALL_PAIRS = [Pair(12, 3, 8, across, rotated, F32) for across in (False, True) for rotated in (False, True)]


@thorough
@pytest.mark.parametrize(
    ("make", "case"),
    [
        *((make, case) for make in (NormModulate, GateNormModulate) for case in SMALL),
        *((QkNorm, pair) for pair in SMALL_PAIRS),
    ],
    ids=lambda value: value.name,
)
def test_peers_compute_what_the_operators_compute(make, case) -> None:
    """A peer that does less work would look fast."""
    one = make(case, CPU)
    inputs = [tensor.detach().requires_grad_() for tensor in one.inputs]
    found = one.forward(EAGER)
    upstream = [torch.randn_like(out) for out in found[: one.outputs]]
    expected = one.chain(inputs, wide=True)
    torch.testing.assert_close(list(found[: one.outputs]), list(expected))
    gradients = one.backward(EAGER, found, upstream)
    theirs = torch.autograd.grad(list(expected), inputs, upstream)
    torch.testing.assert_close(list(gradients[: len(inputs)]), list(theirs))


@thorough
def test_every_pass_is_measured_for_everyone() -> None:
    result = bench_kernels(Plan(TRIAL, compiled=False, runs=2), CPU, {"reference": EAGER})
    rows = [GoalRow(**row) for row in result["rows"]]
    measured = [(row.operator, row.direction, row.by) for row in rows]
    assert len(set(measured)) == len(measured) == 3 * 2 * 3
    assert {row.by for row in rows} == {"reference", BF16, FP32}
    assert all(row.milliseconds > 0 and row.of_copy > 0 for row in rows)
    assert {row.by for row in rows if row.ours} == {"reference"}
    assert [row.same_bits for row in rows if row.ours and row.direction == "backward"] == [True] * 3
    assert {goal["aim"]: goal["met"] for goal in result["goals"]}["backward: equal bits on every run"] is True


@thorough
def test_what_there_is_no_time_for_is_told() -> None:
    made = [partial(NormModulate, KernelCase(1, 12, 16)), partial(QkNorm, Pair(12, 2, 8))]
    result = bench_kernels(Plan(made, compiled=False, runs=1, seconds=0), CPU, {"reference": EAGER})
    assert result["rows"] == []
    assert [name.split(" ")[0] for name in result["left_out"]] == ["layer_norm_modulate", "qk_norm"]


@thorough
def test_runs_that_differ_are_told() -> None:
    def noisy(*arguments):
        dx, *others = norm_modulate.backward(*arguments)
        return dx + torch.rand(()), *others

    unsteady = EAGER.replace(norm_modulate_backward=noisy)
    plan = Plan([partial(NormModulate, KernelCase(1, 12, 16))], compiled=False, runs=3)
    result = bench_kernels(plan, CPU, {"unsteady": unsteady})
    assert [row["same_bits"] for row in result["rows"] if row["ours"]] == [None, False]
    assert result["goals"][-1]["met"] is False


def row(milliseconds=1.0, of_copy=0.9, by="nvrtc", **more) -> GoalRow:
    size = {"tokens": 32768, "width": 3072, "rows": 1}
    about = {"operator": "layer_norm_modulate", "case": "large", "direction": "forward"}
    return GoalRow(
        **(about | size | more), by=by, ours=by == "nvrtc", milliseconds=milliseconds, of_copy=of_copy
    )


def test_goals_are_those_of_the_worst_row() -> None:
    rows = [
        row(),
        row(6.0, by=FP32),
        row(0.9, by=COMPILED),
        row(of_copy=0.95, case="larger"),
        row(of_copy=0.1, case="tiny", tokens=64),
        row(0.39, case=PAPER.name, of_copy=0.2),
    ]
    found = {goal.aim: goal for goal in goals(rows, PAPER.name)}
    share = found["layer_norm_modulate forward: of a copy, N D >= 50 M"]
    assert (share.reached, share.where, share.met) == (0.9, "large", False)
    assert found["forward: times as fast as the fp32 chain, N D >= 50 M"].met is False
    assert found["forward: times as fast as torch.compile"].reached == pytest.approx(0.9)
    assert found["forward, the paper's shape: 0.4 ms over its time"].met is True
    assert found["qk_norm forward: of a copy, N D >= 50 M"].met is None


def test_what_is_measured_by_default_covers_the_aims() -> None:
    assert PAPER in CASES
    assert any(case.batch * case.tokens == 8192 and case.width == 1536 for case in CASES)
    assert sum(case.shape[0] * case.shape[1] >= 50_000_000 for case in CASES) >= 5
    assert {case.form for case in CASES} == {"sample", "frame", "packed", "token"}
    assert {pair.across_heads for pair in PAIRS} == {False, True}
    assert {make.func for make in OPERATORS} == {NormModulate, GateNormModulate, QkNorm}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(UsageError, match="needs a GPU"):
        bench_kernels()


@thorough
def test_it_needs_pytorch_alone() -> None:
    """GPU machines often have little else, and no network."""
    code = """
import sys
for name in ("pydantic", "pyarrow", "botocore", "av", "yaml", "ray"):
    sys.modules[name] = None
import reelweave.pipelines.benchmarks.kernels, reelweave.pipelines.commands.plan.bench
import tests.bench.kernels, reelweave.train.kernels.__main__
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
