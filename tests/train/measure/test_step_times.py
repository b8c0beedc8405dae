"""Where the time of a step goes, in real runs: what the lines of metrics.jsonl say of it."""

import json
import statistics
import time

import pytest
import torch

from reelweave.train.distributed.world import World
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure.step_times import SHOWN, ClockSums, RankTimes, StepTimes
from reelweave.train.measure.timings import PARTS
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop import worlds
from tests.train.saved import metrics


def test_who_waited_for_whom_follows_from_sums_over_the_ranks():
    ranks = [RankTimes(World(rank, 3, torch.device("cpu"))) for rank in range(3)]

    def step(sync_R: list[float]) -> StepTimes:
        own = [
            one.own(dict.fromkeys(PARTS, 0.0) | {"data": 1.0 + rank, "pause": 3.0, "sync": sync_R[rank]})
            for rank, one in enumerate(ranks)
        ]
        sums = [sum(numbers) for numbers in zip(*(one.numbers() for one in own), strict=True)]
        [times] = {one.add(ClockSums.from_numbers(sums)) for one in ranks}
        return times

    times = step([2.5, 1.5, 0.5])
    assert (times.data_s, times.pause_s, times.sync_s) == pytest.approx((2.0, 3.0, 0.5))
    assert (times.wait_s, times.wait_max_s, times.slowest_rank) == (1.0, 2.0, 2)
    assert times.step_s == pytest.approx(3.5)
    assert times.shares["wait"] == pytest.approx(1 / 3.5)
    step([0.5, 1.0, 0.5])
    expected = "; ranks waited 18.9% of the time (rank 0 32.4%), in 1 of 2 steps for rank 0"
    assert {one.waits_clause() for one in ranks} == {expected}
    assert ranks[0].waits_clause() == ""
    for one in ranks:
        waits = one.take_waits()
        assert (waits.steps, waits.last, waits.peak_gib) == (2, [1, 0, 1], None)
        assert waits.wait_s == pytest.approx([2.0, 1.5, 0.0])
        assert waits.seconds == pytest.approx(3.5 + sum([0.5, 1.0, 0.5]) / 3 + 2.0)
        assert one.take_waits().steps == 0


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


@thorough
def test_a_slow_rank_is_waited_for(tmp_path, ranks):
    ended = ranks.run(worlds.slow_stream, 2, str(tmp_path), 10)
    assert ended.codes == [0, 0], ended.errors
    lines = metrics(tmp_path)
    for line in lines:
        assert sum(line[f"{part}_s"] for part in SHOWN) == pytest.approx(line["step_s"], rel=1e-9)
        assert line["data_s"] >= 0.1  # the mean of 0 and 0.2, at least
        assert line["wait_s"] == pytest.approx(line["wait_max_s"] / 2)
    assert statistics.median(line["wait_max_s"] for line in lines) > 0.1
    assert statistics.mode(line["slowest_rank"] for line in lines) == 1
    of_ranks = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    assert sum(line["steps"] for line in of_ranks) == of_ranks[-1]["step"] == 10
    assert sum(line["seconds"] for line in of_ranks) == pytest.approx(
        sum(line["step_s"] for line in lines), abs=1e-2
    )
    waits_R = [sum(line["wait_s"][rank] for line in of_ranks) for rank in range(2)]
    assert sum(waits_R) / 2 == pytest.approx(sum(line["wait_s"] for line in lines), abs=1e-2)
    assert waits_R[0] > 10 * waits_R[1]
    assert "for rank 1" in ended.errors[0].split("step 10/10 ")[1]
    [told] = [line for line in ended.errors[0].splitlines() if line.startswith("step 10: ")]
    assert "2 sequence lengths were measured" in told
    assert "ranks waited" in told
    assert told.endswith("steps for rank 1")
    [named] = [line for line in ended.errors[0].splitlines() if line.startswith("step 7: ")]
    assert "for rank 1: look at its machine" in named
    # What is recorded of rank 1 alone.
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == [
        "steps-000002-000003-rank-0001.json.gz"
    ]
