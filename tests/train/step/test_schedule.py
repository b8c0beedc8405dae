import itertools

import pytest

from reelweave.train.config.optimizer import OptimizerConfig, ScheduleConfig
from reelweave.train.step.learning_rate import learning_rate

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


def test_a_line_falls_by_equal_steps():
    curve = rates(kind="linear", total_steps=14, warmup_steps=4, min_lr_ratio=0.5)
    assert curve[4:] == pytest.approx([0.5 - 0.025 * step for step in range(10)])


def test_a_constant_stays():
    assert rates(kind="constant", total_steps=8, warmup_steps=2) == pytest.approx([0.25] + [0.5] * 7)


def test_warmup_stable_decay_falls_in_its_last_steps_alone():
    curve = rates(kind="wsd", total_steps=20, warmup_steps=2, decay_steps=5, min_lr_ratio=0.0)
    assert curve[1:16] == pytest.approx([0.5] * 15)
    assert curve[15:] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    # A fifth of the steps unless something else is said.
    assert rates(kind="wsd", total_steps=50, warmup_steps=0, min_lr_ratio=0.0)[39:42] == pytest.approx(
        [0.5, 0.5, 0.45]
    )


@pytest.mark.parametrize(("warmup", "decay"), [(4, 100), (9, None)])
def test_a_decay_of_more_steps_than_are_left_begins_at_the_full_rate(warmup, decay):
    curve = rates(kind="wsd", total_steps=10, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=0.0)
    assert curve[warmup:] == pytest.approx([0.5 - 0.5 * step / (10 - warmup) for step in range(10 - warmup)])


def test_the_inverse_square_root_halves_at_four_times_the_warmup():
    curve = rates(kind="inverse_sqrt", total_steps=500, warmup_steps=5, min_lr_ratio=0.2)
    assert (curve[4], curve[5], curve[20]) == pytest.approx((0.5, 0.5, 0.25))
    assert curve[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(curve[5:]))


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "inverse_sqrt"])
def test_no_curve_leaves_its_bounds(kind):
    schedule = ScheduleConfig(kind=kind, total_steps=10, warmup_steps=3, min_lr_ratio=0.1)
    curve = [learning_rate(step, OPTIMIZER, schedule) for step in range(3, 10_000)]
    assert max(curve) == pytest.approx(0.5)
    assert min(curve) == pytest.approx(0.05)
    always = ScheduleConfig(kind=kind, total_steps=10, warmup_steps=0, min_lr_ratio=1.0)
    assert {learning_rate(step, OPTIMIZER, always) for step in range(50)} == {0.5}


def test_decay_steps_are_of_one_kind():
    with pytest.raises(ValueError, match="decay_steps is of kind wsd, not of cosine"):
        ScheduleConfig(decay_steps=3)
