"""Numbers of a run's page, against what its files say when they are read in the plainest way."""

import json
import math
import os
from pathlib import Path
from statistics import fmean

import pytest

from reelweave.pipelines.report.run.lines import blocks
from reelweave.pipelines.report.run.metrics import PARTS, read_steps
from reelweave.pipelines.report.run.numbers import read_runs
from reelweave.pipelines.report.run.series import MOST_BINS
from reelweave.pipelines.report.run.timelines import read_timelines
from reelweave.train.measure.step_times import SHOWN
from tests.pipelines.report.runs import PEAK_GIB, SKIPPED, SLOW_RANK, cascaded, configured, recorded

STEPS = 1700


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("runs") / "one"
    return out, recorded(out, STEPS)


def near(expected: object) -> object:
    return pytest.approx(expected, rel=1e-9)


def test_parts_are_those_of_the_trainer() -> None:
    assert PARTS == SHOWN


def test_steps_are_what_the_lines_say(run: tuple[Path, list[dict]]) -> None:
    out, lines = run
    steps = read_steps(out)
    assert (steps.recorded, steps.first, steps.last, steps.unreadable) == (STEPS, 1, STEPS, 0)
    assert (steps.skipped, steps.last_skipped) == (len(SKIPPED), SKIPPED[-1])
    assert steps.peak_gib == PEAK_GIB
    assert steps.seconds == near(math.fsum(line["step_s"] + line["pause_s"] for line in lines))
    for window, of in ((steps.whole, lines), (steps.start, lines[:100]), (steps.recent, lines[-100:])):
        seconds = math.fsum(line["step_s"] for line in of)
        assert window.steps == len(of)
        assert window.loss == near(fmean(line["loss"] for line in of if line["loss"] is not None))
        assert window.step_s == near(seconds / len(of))
        assert window.tokens_per_s == near(sum(line["tokens"] for line in of) / seconds)
        assert window.samples_per_s == near(sum(line["samples"] for line in of) / seconds)
        assert window.flops_per_s == near(sum(line["flops"] for line in of) / seconds)
        assert window.mfu == near(math.fsum(line["mfu"] * line["step_s"] for line in of) / seconds)
        assert window.wait_share == near(math.fsum(line["wait_s"] for line in of) / seconds)
        assert window.parts == near({part: fmean(line[f"{part}_s"] for line in of) for part in PARTS})


def test_curves_hold_mean_and_extremes_of_bins(run: tuple[Path, list[dict]]) -> None:
    out, lines = run
    series = read_steps(out).series
    assert series.width == 8  # the smallest power of two with at most 400 bins
    bins = [lines[at : at + 8] for at in range(0, STEPS, 8)]
    assert series.step == [of[-1]["step"] for of in bins]
    assert len(series.step) <= MOST_BINS
    for name in ("loss", "lr", "grad_norm", "step_s", "mfu", "tokens_per_s", "pause_s", "peak_gib"):
        known = [[line[name] for line in of if line[name] is not None] for of in bins]
        curve = series.curves[name]
        assert curve.mean == near([fmean(of) for of in known])
        assert (curve.low, curve.high) == ([min(of) for of in known], [max(of) for of in known])


def test_every_step_of_a_short_run_is_a_point(tmp_path: Path) -> None:
    lines = recorded(tmp_path, 40)
    series = read_steps(tmp_path).series
    assert series.width == 1
    curve = series.curves["loss"]
    assert curve.mean == curve.low == curve.high == [line["loss"] for line in lines]


def test_waits_are_charged_to_the_rank_that_came_last(run: tuple[Path, list[dict]]) -> None:
    out, lines = run
    steps = read_steps(out)
    seconds = math.fsum(line["step_s"] for line in lines)
    expected = {}
    for rank in range(4):
        own = [line["wait_s"] for line in lines if line["slowest_rank"] == rank]
        expected[rank] = (len(own), near(math.fsum(own)), near(math.fsum(own) / seconds))
    assert {one.rank: (one.steps, one.waited_s, one.share) for one in steps.waits} == expected
    assert steps.waits[0].rank == SLOW_RANK


def test_losses_by_bucket_and_time(run: tuple[Path, list[dict]]) -> None:
    out, _ = run
    [found] = read_runs([out]).runs
    lines = [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]
    for kind in ("train", "held_out"):
        own = [line for line in lines if line["of"] == kind]
        losses = getattr(found.losses, kind)
        assert list(losses.by_bucket) == ["5x16x16", "9x32x32", "17x32x32"]  # by size, not as text
        for groups, name in ((losses.by_bucket, "by_bucket"), (losses.by_time, "by_quantile")):
            for group, series in groups.items():
                assert series.points("loss") == [
                    (line["step"], near(line[name][group]["loss"])) for line in own
                ]
    best = found.losses.held_out_best
    held_out = {line["step"]: line["whole"]["loss"] for line in lines if line["of"] == "held_out"}
    assert best is not None
    assert (best.last_step, best.last) == (STEPS, held_out[STEPS])
    assert (best.best, best.best_step) == min((loss, step) for step, loss in held_out.items())


def test_a_live_run_is_read_up_to_the_line_being_written(tmp_path: Path) -> None:
    lines = recorded(tmp_path, 30)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "loss": 0.')
    steps = read_steps(tmp_path)
    assert (steps.recorded, steps.last, steps.unreadable) == (30, 30, 0)
    assert steps.whole.loss == near(fmean(line["loss"] for line in lines if line["loss"] is not None))


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    recorded(tmp_path, 30)
    path = tmp_path / "metrics.jsonl"
    good = path.read_text().splitlines()
    wrong = [
        '{"step": 9, "lo',
        "[1]",
        '{"step": "12"}',
        '{"step": 4, "loss": 1}',
        '{"step": -1}',
        "\x00" * 50,
    ]
    path.write_text("\n".join([*good[:15], *wrong, '{"step": 15.5}', *good[15:]]) + "\n")
    steps = read_steps(tmp_path)
    assert (steps.recorded, steps.last, steps.unreadable) == (30, 30, len(wrong) + 1)
    path.write_text('{"step": 1, "loss": 1e999, "step_s": 1, "mfu": "x", "slowest_rank": 1e18, "parts": 3}\n')
    steps = read_steps(tmp_path)
    assert (steps.recorded, steps.skipped, steps.whole.loss, steps.whole.step_s, steps.waits) == (
        1,
        1,
        None,
        1,
        [],
    )


def test_a_pipe_or_an_endless_line_is_no_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert list(blocks(tmp_path / "pipe")) == []
    (tmp_path / "metrics.jsonl").write_bytes(b"[" * (20 << 20) + b"\n" + b'{"step": 1, "loss": 2}\n')
    assert read_steps(tmp_path).recorded == 1


def test_terms_of_a_loss_have_curves(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "parts": {"l1": step / 2, "kl": 0.25}} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = read_steps(tmp_path)
    assert steps.terms == ["l1", "kl"]
    assert steps.series.curves["parts/l1"].mean == [0.5, 1.0, 1.5]


def test_timelines_say_what_was_planned_and_executed(tmp_path: Path) -> None:
    cascaded(tmp_path, 2)
    planned, executed = cascaded(tmp_path, 4)
    (tmp_path / "timeline" / "step-000006.json").write_text('{"traceEvents": [{"pid": []}]}')
    found = read_timelines(tmp_path)
    assert [one.step for one in found.shown] == found.steps == [2, 4, 6]
    assert found.shown[2].problem
    last = found.shown[1]
    assert (last.cascades, last.ranks, last.picture) == (3, 4, "timeline/step-000004.html")
    assert last.seconds == near({"planned": planned.makespan_s, "executed": executed.makespan_s})
    assert last.idle == near({"planned": planned.idle, "executed": executed.idle})
    assert len(found.last) == sum(len(run.gpus) for one in (planned, executed) for run in one.runs)


def test_what_deserves_a_look_is_said_in_words(run: tuple[Path, list[dict]]) -> None:
    out, lines = run
    configured(out, {"schedule": {"total_steps": 2000}, "cascade": {"memory_gib": 80}})
    (out / "bad_samples.jsonl").write_text('{"key": "k", "shard": "s", "offset": 1, "reason": "r"}\n' * 3)
    [found] = read_runs([out]).runs
    said = "\n".join(found.warnings)
    share = math.fsum(line["wait_s"] for line in lines if line["slowest_rank"] == SLOW_RANK) / math.fsum(
        line["step_s"] for line in lines
    )
    assert f"Rank {SLOW_RANK} is slow: ranks waited for it {share:.1%}" in said
    assert "not finite in 2 steps of 1,700, the last of them 900" in said
    assert "Memory came to 78.5 GiB of 80" in said
    assert "held-out loss was lowest at step" in said
    assert "3 samples could not be used" in said
    assert "no checkpoint yet" in said
    assert found.left_s == near(300 * (found.steps.recent.step_s + found.steps.recent.pause_s))
    assert "Memory" not in "\n".join(read_runs([out], memory_gib=90).runs[0].warnings)


def test_a_fall_of_the_rate_is_said_and_a_steady_one_is_not(tmp_path: Path) -> None:
    lines = recorded(tmp_path / "steady", 400)
    assert "fell" not in "\n".join(read_runs([tmp_path / "steady"]).runs[0].warnings)
    (tmp_path / "fell").mkdir()
    with (tmp_path / "fell" / "metrics.jsonl").open("w") as file:
        for line in lines:
            slower = 1.5 if line["step"] > 350 else 1.0
            file.write(
                json.dumps(line | {"step_s": line["step_s"] * slower, "mfu": line["mfu"] / slower}) + "\n"
            )
    assert "MFU fell: the last 40 steps ran at 6" in "\n".join(
        read_runs([tmp_path / "fell"]).runs[0].warnings
    )
