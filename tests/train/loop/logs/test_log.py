import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest

from reelweave.loader.batch import BadSample
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs import console
from reelweave.train.loop.logs.breakdown import BINS, LossRecord, break_down
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.metrics import RunSummary, StepMetrics
from reelweave.train.loop.logs.record import BAD_SAMPLES, METRICS, CheckpointRecord, ValidationRecord
from reelweave.train.loop.logs.records import read_metrics
from reelweave.train.measure.step_times import StepTimes


def step(number: int, loss: float | None = 1.0) -> StepMetrics:
    return StepMetrics(
        step=number,
        loss=loss,
        lr=1e-3,
        grad_norm=0.5,
        skipped=loss is None,
        times=StepTimes(step_s=0.5, data_s=0.1),
        samples=4,
        tokens=100,
    )


def log(out, start_step=0) -> RunLog:
    return RunLog(out, LogConfig(tensorboard=False), start_step, total_steps=20, writes=True)


def test_what_is_recorded_is_read_back(tmp_path):
    with log(tmp_path) as first:
        first.write(step(1))
        first.write(step(2, loss=None))
    assert list(read_metrics(tmp_path, 2)) == [step(1), step(2, loss=None)]
    assert json.loads((tmp_path / METRICS).read_text().splitlines()[0])["samples_per_s"] == 8


def test_steps_recorded_before_operations_were_are_kept(tmp_path):
    old = {name: value for name, value in asdict(step(1)).items() if name not in ("flops", "mfu", "times")}
    old |= {"step_s": 0.5, "data_s": 0.1}
    (tmp_path / METRICS).write_text(json.dumps(old) + "\n")
    with log(tmp_path, start_step=1) as second:
        second.write(replace(step(2), flops=10**15, mfu=0.5))
    assert list(read_metrics(tmp_path, 2)) == [step(1), replace(step(2), flops=10**15, mfu=0.5)]


def test_the_console_tells_the_larger_parts_of_a_step(tmp_path, capsys):
    times = StepTimes(
        step_s=2.0, data_s=0.5, vae_s=0.01, forward_s=0.99, wait_s=0.5, wait_max_s=1.0, slowest_rank=3
    )
    with log(tmp_path) as first:
        first.write(replace(step(10), times=times))
    assert "2.00 s (data 25%, forward 50%, wait 25% for rank 3)" in capsys.readouterr().err
    assert next(read_metrics(tmp_path, 10)).times == times


def test_held_out_clips_are_counted_and_not_their_times(tmp_path, capsys):
    rows_n5 = np.array([[9, 48, 80, (part + 0.5) / BINS, 2.0] for part in range(BINS) for _ in range(7)])
    with log(tmp_path) as first:
        first.write(LossRecord(4, "held_out", break_down(rows_n5)))
    assert "step 4: held-out loss 2.0000 over 7 clips, each at 4 times" in capsys.readouterr().err


def test_later_steps_and_a_line_cut_short_are_gone_after_a_resume(tmp_path):
    with log(tmp_path) as first:
        for number in range(1, 6):
            first.write(step(number))
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 6, "lo')
    with log(tmp_path, start_step=3) as second:
        second.write(step(4))
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {line["run"] for line in lines} == {(tmp_path / "run_id").read_text()}


def test_the_summary_covers_the_steps_before_a_resume(tmp_path):
    with log(tmp_path) as first:
        for number in range(1, 13):
            first.write(step(number, loss=float(number)))
    with log(tmp_path, start_step=12) as second:
        second.write(step(13, loss=None))
    assert second.summary.window == 6
    assert second.summary.first_loss == 3.5
    assert second.summary.last_loss == 9.5
    assert second.summary.samples_per_s == 8


@pytest.mark.parametrize(
    ("losses", "window", "first", "last"),
    [
        ([], 0, None, None),
        ([4.0], 1, 4.0, 4.0),
        ([4.0, 2.0], 1, 4.0, 2.0),
        ([4.0, 3.0, 2.0], 2, 3.5, 2.5),
        ([float(n) for n in range(30)], 10, 4.5, 24.5),
    ],
)
def test_the_start_and_the_end_of_a_short_run_are_told_apart(losses, window, first, last):
    summary = RunSummary()
    for number, loss in enumerate(losses, start=1):
        summary.add(step(number, loss=loss))
    assert (summary.window, summary.first_loss, summary.last_loss) == (window, first, last)


def test_readers_get_every_record_behind_its_line(tmp_path):
    shown = []

    class Reader:
        def read(self, record):
            last = (tmp_path / record.FILE).read_text().splitlines()[-1]
            shown.append((record.FILE, json.loads(last)["step"], record.scalars().get("validation/lpips")))

        def close(self, failed):
            shown.append(failed)

    with RunLog(tmp_path, LogConfig(tensorboard=False), 0, 20, writes=True, readers=[Reader()]) as first:
        first.write(step(1))
        first.write(ValidationRecord(1, {"lpips": 0.25, "videos": 3}))
        first.write(CheckpointRecord(1, at=5.0))
    assert shown == [
        ("metrics.jsonl", 1, None),
        ("validation.jsonl", 1, 0.25),
        ("checkpoints.jsonl", 1, None),
        False,
    ]


def test_lines_go_to_the_file_of_that_name_whatever_became_of_the_one_before(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with log(out) as first:
        first.write(step(1))
        (out / METRICS).rename(out / "moved")
        first.write(step(2))
        assert json.loads((out / METRICS).read_text())["step"] == 2
        shutil.rmtree(out)
        with pytest.raises(FileNotFoundError, match=METRICS):
            first.write(step(3))


def test_bad_samples_are_listed_beside_the_metrics(tmp_path):
    with log(tmp_path) as first:
        first.bad_samples([])
        assert not (tmp_path / BAD_SAMPLES).exists()
        first.bad_samples([BadSample("one", "shards/000000.tar", 512, "it is damaged")])
        first.bad_samples([BadSample("two", "shards/000001.tar", 0, "the shard is missing")])
    lines = [json.loads(line) for line in (tmp_path / BAD_SAMPLES).read_text().splitlines()]
    assert [(line["key"], line["offset"]) for line in lines] == [("one", 512), ("two", 0)]


def test_a_slow_run_says_its_first_step_and_one_each_half_minute(tmp_path, capsys, monkeypatch):
    """On a processor ten steps took two minutes without a sign of life."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with log(tmp_path) as first:
        capsys.readouterr()
        for number in range(1, 21):
            now[0] += 12.0 if number < 10 else 1.0
            first.write(step(number))
    lines = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert lines == ["1/20", "4/20", "7/20", "10/20", "20/20"]
