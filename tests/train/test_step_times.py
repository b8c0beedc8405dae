"""Where the time of a step goes, in real runs: what the lines of metrics.jsonl say of it."""

import statistics
import time

import pytest

from tests.train import worlds
from tests.train.clips import ClipStream, tiny_config
from tests.train.saved import metrics
from train.step_times import SHOWN
from train.trainer import Trainer


def test_parts_add_up_and_leave_out_nothing(tmp_path):
    asked = []

    class Stream(ClipStream):
        def microbatch(self, step, slot=0):
            asked.append(time.perf_counter())
            time.sleep(0.02)
            return super().microbatch(step, slot)

    Trainer(tiny_config(6), Stream(sizes=(2, 2)), tmp_path).run()
    ended = time.perf_counter()
    lines = metrics(tmp_path)
    for line in lines:
        assert sum(line[f"{part}_s"] for part in SHOWN) == pytest.approx(line["step_s"], rel=1e-9)
        assert line["data_s"] >= 0.04
        assert min(line[f"{part}_s"] for part in ("text", "vae", "forward", "backward", "other")) > 0
        assert (line["wait_s"], line["wait_max_s"], line["peak_gib"]) == (0, 0, None)
    # Clocks are read once in each step, behind its batches.
    passed = sum(line["step_s"] + line["pause_s"] for line in lines[1:])
    assert asked[-1] - asked[2] < passed < ended - asked[0]
    assert lines[0]["optimizer_s"] == 0 < lines[1]["optimizer_s"]


def test_a_slow_rank_is_waited_for(tmp_path, ranks):
    ended = ranks.run(worlds.slow_stream, 2, str(tmp_path), 8)
    assert ended.codes == [0, 0], ended.errors
    lines = metrics(tmp_path)
    for line in lines:
        assert sum(line[f"{part}_s"] for part in SHOWN) == pytest.approx(line["step_s"], rel=1e-9)
        assert line["data_s"] >= 0.1  # the mean of 0 and 0.2
        assert line["wait_s"] == pytest.approx(line["wait_max_s"] / 2)
    assert statistics.median(line["wait_max_s"] for line in lines) > 0.1
    assert statistics.mode(line["slowest_rank"] for line in lines) == 1
    # What is recorded of rank 1 alone.
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == [
        "steps-000002-000003-rank-0001.json.gz"
    ]


def test_a_rank_that_is_slow_at_everything_is_named_at_a_set_point(tmp_path, ranks):
    ended = ranks.run(worlds.slow_model, 2, str(tmp_path), 24)
    assert ended.codes == [0, 0], ended.errors
    [told] = [line for line in ended.errors[0].splitlines() if line.startswith("step 24: ")]
    assert "rank 1 takes" in told
    assert "steps for rank 1" in told
