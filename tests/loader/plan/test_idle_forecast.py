"""What a stream says of its own plan: how long ranks will wait, and which setting helps."""

import logging

import numpy as np
import pytest

from reelweave.loader.buckets.assignment import Assignment, BucketConfig, assign
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset
from reelweave.loader.plan.epoch_plan import EpochPlan, plan_epoch
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.simulation.idle_forecast import forecast_idle, heavy_tail
from reelweave.loader.simulation.plan_metrics import idle
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.samples import plan_index
from tests.loader.stream_clips import config
from tests.thorough import thorough

CONFIG = BucketConfig(
    frames=(1, 9, 17, 33, 65),
    sizes=((64, 64), (64, 128), (128, 128)),
    compression=Compression(frames=8, height=16, width=16, causal=True),
    max_text_tokens=20,
    memory_tokens=1200,
)


def mixed(frames: tuple[int, ...], samples: int = 9000) -> Assignment:
    generator = np.random.default_rng(0)
    height = generator.choice([64, 128], samples)
    return assign(plan_index(frames=generator.choice(frames, samples), height=height, width=128), CONFIG)


def idle_of(plan: EpochPlan, steps: int) -> float:
    placed = (plan.place_step(step) for step in range(steps))
    return float(np.mean([idle(plan.costs(members), placement) for members, placement in placed]))


@thorough
def test_what_other_settings_would_idle_is_what_their_plans_idle() -> None:
    assignment = mixed((1, 9, 17, 33, 65))
    one, four, slots = (
        plan_epoch(assignment, 3, 0, StepLayout(8, microbatches, regime=regime, lookahead=4))
        for microbatches, regime in ((1, "step"), (4, "step"), (1, "slot"))
    )
    found = forecast_idle(one)
    assert found.idle == pytest.approx(idle_of(one, 64))
    assert found.idle == pytest.approx(found.idle_floor)  # one for each rank cannot be placed better
    assert found.idle_at_more == pytest.approx(idle_of(four, 16), abs=0.01)
    assert found.idle_in_slots == pytest.approx(idle_of(slots, 64), abs=0.05)
    assert found.idle_at_more < 0.02 < 0.25 < found.idle
    said = found.advice()
    assert said is not None
    assert f"{found.idle:.1%}" in said
    assert "microbatches=4" in said
    assert forecast_idle(four).advice() is None


def test_a_sample_that_exceeds_a_ranks_share_is_named_with_the_bound() -> None:
    assignment = mixed((1,) * 999 + (65,))
    found = forecast_idle(plan_epoch(assignment, 3, 0, StepLayout(8, 4)))
    assert found.idle_floor > 0.05
    assert found.idle_floor <= found.idle < found.idle_floor + 0.05
    assert found.advice() == heavy_tail(found.idle_floor, found.dearest)


@pytest.mark.parametrize(
    ("samples", "ranks", "more"),
    [
        (9000, 5000, 1),  # an epoch of a step, which no setting changes
        (9000, 1000, 2),
        pytest.param(60_000, 4000, 3, marks=thorough),
    ],
)
def test_no_setting_is_promised_that_an_epoch_has_no_step_for(samples: int, ranks: int, more: int) -> None:
    assignment = mixed((1, 9, 17, 33, 65), samples)
    plan = plan_epoch(assignment, 3, 0, StepLayout(ranks, 1))
    found = forecast_idle(plan)
    assert found.more == more
    other = plan_epoch(assignment, 3, 0, StepLayout(ranks, more))
    assert found.idle_at_more == pytest.approx(idle_of(other, 1), abs=0.02)
    assert found.idle_at_more > 0.001
    assert ("brings it to" in (found.advice() or "")) == (more > 1)


@pytest.mark.parametrize(("rank", "world_size", "told"), [(0, 2, True), (1, 2, False), (0, 1, False)])
def test_the_first_of_several_ranks_is_told(
    dataset: Dataset, caplog: pytest.LogCaptureFixture, rank: int, world_size: int, told: bool
) -> None:
    with caplog.at_level(logging.WARNING, "reelweave.loader"):
        VideoStream(dataset, config(), rank, world_size)
    assert ("microbatches=3 brings it to" in caplog.text) == told  # an epoch has six


def test_nothing_is_said_of_a_stream_that_balances(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "reelweave.loader"):
        VideoStream(dataset, config(microbatches=4), 0, 2)
        VideoStream(dataset, config(policy="dual_constraint"), 0, 2)
    # One sample of this dataset fits no bucket, which is said of any stream; nothing else is.
    assert {record.name for record in caplog.records} == {"reelweave.loader.stream.checks.unassigned"}
