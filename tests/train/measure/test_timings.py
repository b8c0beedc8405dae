"""Measured microbatches, and what a run does with them at a set point."""

import json
import time

import numpy as np
import pytest

from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, PowerCost
from reelweave.loader.buckets.cost_fit import Timings
from reelweave.loader.buckets.recalibrate import RecalibrateConfig, Recalibration
from reelweave.train.distributed.world import join
from reelweave.train.loop import steps
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure.timings import StepClock
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop import worlds


class CostedStream(ClipStream):
    """Remembers which cost it was given, and in which step it was asked for a new iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.cost: Cost = PowerCost()
        self.begun: list[int] = []

    def __iter__(self):
        self.begun.append(self.position)
        return super().__iter__()

    def recalibrate(self, cost: Cost) -> bool:
        self.cost = cost
        return True

    def state_dict(self):
        return super().state_dict() | {"cost": self.cost.kind}

    def load_state_dict(self, state):
        super().load_state_dict(state)


def test_a_clock_tells_shapes_and_seconds() -> None:
    stream = ClipStream()
    batches = [stream.microbatch(step) for step in range(3)]
    with join("cpu") as world:
        clock = StepClock(world)
        assert len(clock.take().step_s) == 0
        for number, batch in enumerate(batches):
            with clock.microbatch(batch):
                with clock.part("text"):
                    time.sleep(0.02 * number)
                with clock.part("backward"):
                    time.sleep(0.01 * number)
        assert len(clock.take().step_s) == 0  # not read yet
        spent = clock.read()
        timings = clock.take()
        assert len(clock.take().step_s) == 0
    assert timings.batch.tolist() == [len(batch.keys) for batch in batches]
    assert timings.length.tolist() == [batch.length for batch in batches]
    assert timings.rank.tolist() == [0, 0, 0]
    assert timings.step_s[1] >= 0.03
    assert timings.step_s[2] >= 0.06
    parts = spent["forward"] + spent["text"] + spent["backward"]
    assert timings.step_s.sum() == pytest.approx(parts)


def test_all_ranks_hear_what_each_of_them_measured(ranks) -> None:
    ended = ranks.run(worlds.measure, 3)
    assert ended.codes == [0] * 3, ended.errors


def test_parts_take_all_the_time_that_passes() -> None:
    with join("cpu") as world:
        began = time.perf_counter()
        clock = StepClock(world)
        clock_began = time.perf_counter()
        clock.begin()
        with clock.part("forward"):
            time.sleep(0.01)
            with clock.part("vae"):
                time.sleep(0.02)
            time.sleep(0.01)
        clock.pause()
        time.sleep(0.03)
        clock.begin()
        before_reading = time.perf_counter()
        spent = clock.read()
        ended = time.perf_counter()
    assert before_reading - clock_began <= sum(spent.values()) <= ended - began
    assert spent["forward"] >= 0.02
    assert spent["vae"] >= 0.02
    assert spent["pause"] >= 0.03
    assert spent["data"] == spent["sync"] == 0
    assert clock.read()["forward"] == 0


def test_set_points_replace_the_cost_before_the_checkpoint(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Cost, Timings]] = []

    def decide(current: Cost, timings: Timings, config: RecalibrateConfig) -> Recalibration:
        seen.append((current, timings))
        return Recalibration(LinearQuadraticCost(token_s=1, square_s=0), len(seen) == 2, "decided", 0.1)

    monkeypatch.setattr(steps, "recalibrate", decide)
    config = tiny_config(total_steps=8, every_steps=4).model_copy(
        update={"recalibrate": RecalibrateConfig(every_steps=2, min_timings=10)}
    )
    stream = CostedStream()
    Trainer(config, stream, tmp_path).run()
    assert [current.kind for current, _ in seen] == ["power", "power", "linear_quadratic", "linear_quadratic"]
    assert all(len(timings.step_s) == 2 and np.all(timings.step_s > 0) for _, timings in seen)
    assert stream.begun == [0, 4]
    states = sorted((tmp_path / "checkpoints").glob("step-*/state.json"))
    assert len(states) == 2
    costs = [json.loads(state.read_text())["stream"]["cost"] for state in states]
    assert costs == ["linear_quadratic"] * 2


def test_without_a_setting_no_cost_is_replaced(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "recalibrate", lambda *_: pytest.fail("asked"))
    Trainer(tiny_config(total_steps=4), ClipStream(), tmp_path).run()
