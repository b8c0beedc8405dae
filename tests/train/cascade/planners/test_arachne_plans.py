"""The benchmark of recorded problems, on a folder of our own."""

import json

import pytest

from reelweave.train.cascade.planners.by_name import PLANNERS
from tests.bench.arachne_plans import cases, every, play, read_tables, summary
from tests.train.cascade.planners.tables import ODD


@pytest.fixture
def folder(tmp_path):
    rows = [line.split(",") for line in ODD.splitlines()[1:]]
    rows = [[module, *map(float, numbers), "recorded"] for module, *numbers in rows]
    # An estimate that is too good to be true must not be planned with where plans are recorded.
    rows.append(["dit", 1, 125, 12, 0.1, "filled"])
    table = {"columns": ["module", "batch", "frames", "degree", "seconds", "kind"], "rows": rows}
    for name in ("costs_hunyuan_720p.json", "costs_hunyuan_1080p_derived.json"):
        (tmp_path / name).write_text(json.dumps(table))
    samples = [{"batch": batch, "frames": frames} for batch, frames in ((1, 125), (1, 61), (6, 9), (2, 33))]
    recorded = {"makespan_s": 1.0, "same_node_s": 1.0, "runs": [[]]}
    problem = {"id": "hunyuan-720p-1", "gpus": 16, "resolution": "720p", "samples": samples}
    plans = {"arachne": recorded, "static_sp4": {"makespan_s": 2.0}}
    reference = {"degrees": [1, 2, 4, 6, 8], "best_known_s": 20.0}
    (tmp_path / "problems.json").write_text(json.dumps([{**problem, "plans": plans, "reference": reference}]))
    return tmp_path


def test_a_folder_is_played_and_what_is_worse_is_told(folder, capsys):
    (case,) = cases(folder, read_tables(folder))
    assert case.problem.degrees_K.tolist() == [1, 2, 4, 6, 8]
    assert set(case.plans) == {"arachne", "within nodes"}  # plans without runs were never recorded
    played = play(case, seeds=2)
    assert played.makespan_s == pytest.approx(played.bound_s)
    assert played.area_s <= played.bound_s
    assert played.others_s == min(
        PLANNERS[name](case.problem, 0).makespan_s for name in ("sweep", "genetic", "static-lpt")
    )
    summary([played])
    every([played])
    said = capsys.readouterr().out
    assert "0 / 0 / 1" in said  # nothing ends within a second
    assert f"| {played.makespan_s:.3f} | {played.bound_s:.3f} |" in said
