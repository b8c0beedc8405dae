"""``reelweave plan`` of steps: what it prints can be recomputed from the plan it writes."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.pipelines.cli import main

KEYS = ("compute_cv", "compute_cv_s2", "token_cv", "idle", "padding", "image_share_std", "plan_ms_per_step")
WIDE = ["plan", "koala-wide", "--steps", "5"]


def test_the_plan_it_writes_gives_the_figures_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.parquet"
    asked = ["--world-size", "32", "--microbatches", "8", "--plan-out", str(out), "--json"]
    assert main([*WIDE, *asked]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(KEYS) <= said.keys()
    assert set(said["policies"]) == {"equal_token", "dual_constraint", "same_bucket", "balanced"}
    plan = pq.read_table(out).to_pydict()
    step, rank, length, batch = (np.array(plan[name]) for name in ("step", "rank", "S", "B"))
    loads = np.zeros((5, 32))
    np.add.at(loads, (step, rank), batch * length.astype(float) ** 2)
    assert said["idle"] == pytest.approx((1 - loads.mean(axis=1) / loads.max(axis=1)).mean())
    assert said["compute_cv_s2"] == pytest.approx((1 - loads.min(axis=1) / loads.max(axis=1)).mean())
    assert said["compute_cv"] == pytest.approx(said["compute_cv_s2"])
    assert len(set(zip(plan["step"], plan["rank"], plan["slot"], strict=True))) == 5 * 32 * 8
    assert said["idle"] < 0.002 < said["policies"]["dual_constraint"]["idle"]
    assert list(tmp_path.iterdir()) == [out]


def test_the_packs_it_writes_give_the_figures_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.parquet"
    asked = ["--regime", "pack", "--world-size", "32", "--plan-out", str(out), "--json"]
    assert main([*WIDE, *asked]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["policies"]) == {"equal_token", "balanced"}
    plan = pq.read_table(out).to_pydict()
    step, rank, slot, length, cost = (np.array(plan[name]) for name in ("step", "rank", "slot", "S", "cost"))
    assert set(plan["B"]) == {1}
    held, loads = np.zeros((5, 4, 32)), np.zeros((5, 4, 32))
    np.add.at(held, (step, slot, rank), length)
    np.add.at(loads, (step, slot, rank), cost)
    assert 0 < held.min() <= held.max() <= 144_000
    assert said["fill"] == pytest.approx(held.mean() / 144_000)
    sums = loads.sum(axis=1)
    assert said["idle"] == pytest.approx((1 - sums.mean(axis=1) / sums.max(axis=1)).mean())
    slots = 1 - loads.mean(axis=2).sum(axis=1) / loads.max(axis=2).sum(axis=1)
    assert said["idle_slot"] == pytest.approx(slots.mean())
    assert said["padding"] == said["carried"] == said["alone"] == 0
    assert said["idle"] < 0.001 < 0.2 < said["policies"]["equal_token"]["idle"]
    assert said["idle_slot"] < 0.005 < 0.4 < said["policies"]["equal_token"]["idle_slot"]


def test_people_see_packs_beside_packs_filled_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WIDE, "--regime", "pack"]) == 0
    shown = capsys.readouterr().out
    assert "same_bucket" not in shown
    assert max(map(len, shown.splitlines())) <= 110


def test_people_see_the_policies_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WIDE) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("equal_token", "dual_constraint", "same_bucket", "balanced"))
    assert max(map(len, shown.splitlines())) <= 110


def test_a_shape_benchmark_decides_the_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(batch, length) for batch in (1, 2) for length in (1000, 2000, 5000, 10_000, 30_000, 60_000)]
    lines = [f"{batch},{length},{0.1 + batch * (1e-5 * length + 1e-9 * length**2)}" for batch, length in rows]
    (tmp_path / "t.csv").write_text("batch,length,step_s\n" + "\n".join(lines))
    assert main([*WIDE, "--timings", str(tmp_path / "t.csv"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cost"]["kind"] == "linear_quadratic"
    assert said["cost"]["square_s"] == pytest.approx(1e-9, rel=1e-3)
    assert said["compute_cv"] < 0.02 < said["compute_cv_s2"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "either a DATASET, a blend or a WORKLOAD"),
        (["koala-wide", "--world-size", "0"], "--world-size is 0; it goes from 1"),
        (["koala-wide", "--steps", "-1"], "--steps is -1"),
        (["koala-wide", "--plan-out", "/dev/null/p.parquet"], "--plan-out /dev/null/p.parquet"),
        (["koala-wide", "--timings", "/nowhere/t.csv"], "--timings /nowhere/t.csv"),
        (["koala-wide", "--regime", "pack", "--policy", "same_bucket"], "it is equal_token or"),
        (["koala-wise"], "did you mean koala-wide?"),
        (["--workload", "koala-wide"], " plan koala-wide"),
    ],
)
def test_a_wrong_call_is_named(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *asked]) == 2
    assert said in capsys.readouterr().err


def test_the_old_call_says_what_to_type_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "ds", "--policy", "balanced"]) == 2
    assert " plan ds --policy balanced" in capsys.readouterr().err
    assert main(["report", "--workload", "koala-wide", "--plan-out", "p.parquet"]) == 2
    assert " plan koala-wide --plan-out p.parquet" in capsys.readouterr().err


def test_a_file_without_buckets_says_where_its_keys_belong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "buckets.yaml"
    file.write_text("frames: [17]\nsizes: [[64, 96]]\n")
    assert main(["plan", str(tmp_path), "--world-size", "2", "--config", str(file)]) == 2
    assert "buckets.yaml has no `buckets:`; put frames, sizes and the other keys" in capsys.readouterr().err


def test_a_configuration_of_training_is_told_from_one_of_buckets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("dataset: here\nstream: {buckets: {frames: [1]}}\n")
    assert main(["plan", str(tmp_path), "--world-size", "2", "--config", str(file)]) == 2
    assert "train.yaml is a configuration of training: --config takes" in capsys.readouterr().err
