"""`reelweave plan --cascades`: cascade schedules of a case, a trace, a workload or a dataset."""

import json
from pathlib import Path

import pytest

from reelweave.pipelines.cli import main
from reelweave.train.cascade.placement.mapper import placed_cost
from reelweave.train.cascade.placement.topology import PRESETS
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.simulation.cases import HUNYUAN_720P, arachne, case
from tests.train.cascade.check import violations


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    steps = [
        [{"frames": 13, "height": 720, "width": 1280}, {"frames": 113, "height": 720, "width": 1280}],
        [{"tokens": 30_000, "batch": 2}],
    ]
    path.write_text(json.dumps({"gpus": 16, "gpus_per_node": 8, "steps": steps}))
    return path


def test_the_case_study_as_json_and_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    chosen = [word for name in ("static-sp4", "flexsp", "ours") for word in ("--planner", name)]
    assert main(["plan", "arachne", "--cascades", "--json", "--plan-out", str(out), *chosen]) == 0
    said = json.loads(capsys.readouterr().out)
    planners = said["planners"]
    assert lower_bound(arachne()) < said["lower_bound_s"] < 33.6
    assert planners["static-sp4"]["makespan_s"] == pytest.approx(58.6, abs=0.01)
    assert planners["flexsp"]["makespan_s"] == pytest.approx(53.3, abs=0.05)
    assert planners["ours"]["makespan_s"] <= 33.6
    assert all(set(one) == {"makespan_s", "idle", "plan_ms"} for one in planners.values())
    schedule = Schedule.from_rows(json.loads(out.read_text()), 16)
    assert violations(arachne(), schedule) == []
    assert schedule.makespan_s == said["chosen"]["makespan_s"] == planners["ours"]["makespan_s"]


def test_the_table_says_where_the_gain_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hunyuan-720p:4x16", "--cascades", "--planner", "ours", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    (row,) = (line.split() for line in said.splitlines() if line.split()[0] == "ours")
    seconds, work, idle = (float(row[place]) for place in (1, 4, 5))
    assert (
        main(["plan", "hunyuan-720p:4x16", "--cascades", "--planner", "static-lpt", "--seed", "3", "--json"])
        == 0
    )
    baseline = json.loads(capsys.readouterr().out)["planners"]["static-lpt"]["makespan_s"]
    assert baseline - seconds == pytest.approx(work + idle, abs=0.02)


def test_a_trace_is_planned_step_by_step(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, marked = tmp_path / "plan.json", tmp_path / "marked.json"
    marked.write_text(trace.read_text(), "utf-8-sig")  # as editors on Windows write it
    assert main(["plan", "--trace", str(marked), "--json", "--plan-out", str(out)]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert set(said["planners"]) == {"static-lpt", "ours"}
    assert said["planners"]["ours"]["makespan_s"] <= said["planners"]["static-lpt"]["makespan_s"]
    rows = json.loads(out.read_text())
    steps = [Schedule.from_rows([row for row in rows if row["step"] == step], 16) for step in (0, 1)]
    assert sum(step.makespan_s for step in steps) / 2 == pytest.approx(said["chosen"]["makespan_s"])
    assert {row["module"] for row in rows if row["step"] == 1} == {"text", "dit"}  # its latents are cached


def test_a_cost_model_of_ones_own(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = HUNYUAN_720P.model_copy(update={"vae": None, "text": None})
    slow = slow.model_copy(update={"dit": slow.dit.model_copy(update={"token_bytes": 2.0**20})})
    costs = tmp_path / "costs.json"
    costs.write_text(slow.model_dump_json())
    call = ["plan", "--trace", str(trace), "--costs", str(costs), "--degrees", "4,8", "--memory-gib", "30"]
    assert main([*call, "--planner", "static-lpt", "--plan-out", str(tmp_path / "plan.json")]) == 0
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert {row["module"] for row in rows} == {"dit"}
    assert {len(row["gpus"]) for row in rows} <= {4, 8}
    assert main([*call, "--memory-gib", "1"]) == 2
    assert "step 0" in capsys.readouterr().err


def test_a_cost_table_and_sample_sets_of_ones_own(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes are needed where the table tells them apart, not otherwise."""
    steps, table = tmp_path / "steps.json", tmp_path / "table.csv"
    steps.write_text(
        '{"gpus": 4, "steps": [[{"frames": 13}, {"frames": 5, "batch": 2}], [{"frames": 5, "batch": 2}]]}'
    )
    table.write_text(
        "module,batch,frames,degree,seconds\nvae,1,13,2,2.5\ndit,1,13,2,8\ndit,1,13,4,4.5\nvae,2,5,1,3\ndit,2,5,2,3.5\n"
    )
    call = ["plan", "--trace", str(steps), "--cost-table", str(table)]
    out, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    placing = ["--topology", "dgx-h100", "--noise", "0", "--timeline", str(picture)]
    assert main([*call, *placing, "--json", "--plan-out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    on_paper = said["on_paper"]
    assert on_paper["planned"] == pytest.approx(on_paper["executed"])  # all communication is in the table
    assert said["lower_bound_s"] <= said["planners"]["ours"]["makespan_s"] <= (10.5 + 6.5) / 2
    seconds = {(2, 1): 2.5, (2, 2): 8.0, (4, 2): 4.5, (1, 1): 3.0}
    rows = [row for row in json.loads(out.read_text()) if row["step"] == 0 and row["sample"] == 0]
    for row in rows:
        taken = seconds[len(row["gpus"]), {"vae": 1, "dit": 2}[row["module"]]]
        assert row["end_s"] - row["start_s"] == pytest.approx(taken)
    assert picture.read_text().startswith("<svg")
    for wrong, told in (
        (
            ["plan", "--trace", str(trace), "--cost-table", str(table)],
            f"{trace}, step 0: sample 1: --cost-table",
        ),
        ([*call, "--costs", str(table)], "give one of them"),
        (
            ["plan", "--trace", str(steps)],
            f"{steps}, at step 0, sample 0: a sample needs frames, height and width",
        ),
        (
            ["plan", "arachne", "--cascades", "--cost-table", str(table)],
            "--cost-table goes with a dataset or --trace",
        ),
    ):
        assert main(wrong) == 2
        assert told in " ".join(capsys.readouterr().err.split())


def test_a_static_plan_that_is_kept_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two equal samples on two GPUs: no plan is shorter than one GPU for each, and nothing idles, not even -0.0%."""
    steps, table = tmp_path / "steps.json", tmp_path / "table.csv"
    steps.write_text('{"gpus": 2, "steps": [[{"frames": 13}, {"frames": 13}], [{"frames": 13}]]}')
    # Spaces behind commas are those of a spreadsheet.
    table.write_text("module, frames, degree, seconds\ndit, 13, 1, 4\ndit, 13, 2, 2\n")
    call = ["plan", "--trace", str(steps), "--cost-table", str(table), "--planner", "ours"]
    assert main(call) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "chosen: static-lpt, 3.00 s, 0.0% idle: within 2% of ours (3.00 s), and it needs no handoffs" in said
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["arachnid", "--cascades"], "did you mean arachne?"),
        (["arachne"], "add --cascades"),
        (["hunyuan-720p:many", "--cascades"], "there is arachne, and hunyuan-720p"),
        (["arachne", "--cascades", "--policy", "equal_token"], "--policy is for step plans"),
        (["arachne", "--cascades", "--world-size", "4"], "--world-size is for datasets and workloads"),
        (["koala-wide", "--noise", "0.1"], "--noise goes with --cascades"),
        (["--case", "arachne"], " plan arachne --cascades"),
        (["arachne", "--cascades", "--degrees", "1"], "--degrees goes with a dataset or --trace"),
        (["arachne", "--cascades", "--seed", "-1"], "--seed is -1"),
        (["--trace", "TRACE", "--degrees", "one"], "--degrees one"),
        (["--trace", "TRACE", "--costs", "TRACE"], "key dit"),
        (["--trace", "missing.json"], "missing.json"),
        (["arachne", "--cascades", "--topology", "dgx-h10"], "did you mean dgx-h100"),
        (["arachne", "--cascades", "--topology", "single"], "--topology single: 16 GPUs take 2 nodes"),
        (["arachne", "--cascades", "--topology", "TRACE"], "is no known key"),
        (["arachne", "--cascades", "--noise", "nan"], "--noise is nan"),
        (["arachne", "--cascades", "--timeline", "plan.png"], "--timeline plan.png"),
        (["arachne", "--cascades", "--step", "1"], "--step is 1"),
        (["--trace", "TRACE", "--step", "2"], "steps 0 to 1"),
        (["--trace", "TRACE", "--memory-gib", "0"], "--memory-gib is 0; it must be above 0"),
        (["--trace", "TRACE", "--memory-gib", "nan"], "--memory-gib is nan"),
        (["--trace", "TRACE", "--memory-gib", "40"], "--memory-gib goes with --costs or --cost-table"),
        (["arachne", "--cascades", "--memory-gib", "40"], "--memory-gib goes with a dataset or --trace"),
    ],
)
def test_wrong_calls_are_told_in_a_sentence(
    arguments: list[str], told: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(str(trace) if one == "TRACE" else one for one in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_the_chosen_plan_placed_and_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["plan", "hunyuan-720p:16x64", "--cascades", "--planner", "ours", "--json"]
    assert main([*call, "--plan-out", str(tmp_path / "plan.json")]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "executed" not in plain["on_paper"]
    placing = ["--topology", "dgx-h100", "--noise", "0.05", "--plan-out", str(tmp_path / "placed.json")]
    assert main([*call, *placing]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["lower_bound_s"], said["chosen"]["makespan_s"]) == (
        plain["lower_bound_s"],
        plain["chosen"]["makespan_s"],
    )
    planned, executed = said["on_paper"]["planned"], said["on_paper"]["executed"]
    assert planned["iteration_s"] == said["chosen"]["makespan_s"]
    assert planned["idle"] < executed["idle"] < 0.2
    assert planned["flops_cv"] == pytest.approx(
        executed["flops_cv"], abs=0.05
    )  # other GPUs, the same cascades
    topology = PRESETS["dgx-h100"].holding(64)
    costs = []
    for name in ("plan.json", "placed.json"):
        schedule = Schedule.from_rows(json.loads((tmp_path / name).read_text()), 64)
        assert violations(case("hunyuan-720p:16x64", 0), schedule) == []
        costs.append(placed_cost(schedule, topology))
    assert costs[1] < costs[0]


def test_a_file_of_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its nodes are those of the pictures, and its links what the planner counts with."""
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: 4\ngpus_per_node: 4\ndistances: [[PIX], [PIX], [PIX], [PIX]]\n")
    call = ["plan", "arachne", "--cascades", "--planner", "static-sp8", "--json"]
    assert main(call) == 0
    fast = json.loads(capsys.readouterr().out)
    assert main([*call, "--topology", str(file), "--timeline", str(tmp_path / "t.json")]) == 0
    slow = json.loads(capsys.readouterr().out)
    assert slow["chosen"]["makespan_s"] > fast["chosen"]["makespan_s"]  # a quarter of a card to a GPU
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "GPU 15 (node 3)" in {event["args"].get("name") for event in events if event["ph"] == "M"}
    file.write_text("nodes: 3\ngpus_per_node: 4\ndistances: [[PIX], [PIX], [PIX], [PIX]]\n")
    assert main([*call, "--topology", str(file)]) == 2
    assert "needs nodes: 4" in capsys.readouterr().err


def test_a_timeline_shows_a_step_as_planned_and_executed(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["plan", "--trace", str(trace), "--planner", "static-lpt", "--step", "1"]
    for name in ("t.svg", "t.html", "t.json"):
        assert main([*call, "--noise", "0.1", "--timeline", str(tmp_path / name)]) == 0
        assert "executed" in capsys.readouterr().out
    for name in ("t.svg", "t.html"):
        drawn = (tmp_path / name).read_text()
        assert "planned" in drawn
        assert "executed" in drawn
        assert "DiT 0 (k=" in drawn
        assert "VAE 0" not in drawn  # step 1 has cached latents
    processes = {event["pid"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert processes == {0, 1}
    assert main([*call, "--timeline", str(tmp_path / "plan.svg")]) == 0
    assert "executed" not in (tmp_path / "plan.svg").read_text()


def test_a_planner_without_a_plan_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert case("hunyuan-720p:2x4", 0).gpus == 4
    assert main(["plan", "hunyuan-720p:2x4", "--cascades", "--planner", "static-sp8"]) == 1
    assert "static-sp8" in capsys.readouterr().err
