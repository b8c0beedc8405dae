import itertools

import pytest

from train.config.optimizer import OptimizerConfig, ScheduleConfig
from train.step.learning_rate import learning_rate

OPTIMIZER = OptimizerConfig(lr=0.5)


def rates(**settings) -> list[float]:
    schedule = ScheduleConfig(**settings)
    return [learning_rate(step, OPTIMIZER, schedule) for step in range(schedule.total_steps)]


def test_the_rate_rises_linearly_then_falls_to_its_least():
    curve = rates(total_steps=104, warmup_steps=4, min_lr_ratio=0.1)
    assert curve[:5] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])
    assert curve[54] == pytest.approx(0.5 * 0.55)
    assert curve[-1] == pytest.approx(0.05, rel=0.01)
    assert all(a > b for a, b in itertools.pairwise(curve[4:]))


def test_without_warmup_the_first_step_has_the_full_rate():
    assert rates(total_steps=10, warmup_steps=0)[0] == 0.5


def test_a_warmup_longer_than_the_run_still_rises():
    assert rates(total_steps=3, warmup_steps=10) == pytest.approx([0.05, 0.1, 0.15])


def test_beyond_the_end_the_rate_stays_at_its_least():
    assert learning_rate(500, OPTIMIZER, ScheduleConfig(total_steps=10, min_lr_ratio=0.1)) == pytest.approx(
        0.05
    )
