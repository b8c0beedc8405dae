"""Waits of the first steps: named once, with what helps."""

import pytest

from reelweave.train.measure.idle_watch import IdleWatch
from reelweave.train.measure.step_times import StepTimes


def sentences(ranks: int, wait_s: float, slowest: list[int], steps: int = 200) -> list[str]:
    watch = IdleWatch(ranks, ["more of this", "or that"])
    times = (
        # The first steps compile, and wait for it.
        StepTimes(1.0, 0.0, wait_s=wait_s if step >= 10 else 0.9, slowest_rank=slowest[step % len(slowest)])
        for step in range(steps)
    )
    return [sentence for each in times if (sentence := watch.add(each))]


def test_waits_for_many_ranks_are_said_once_with_what_helps() -> None:
    assert sentences(4, 0.08, [0, 1, 2, 3]) == [
        "ranks waited 8.0% of the time in 50 steps, for different ranks. What helps: more of this; or that"
    ]


def test_one_slow_rank_is_named() -> None:
    assert sentences(4, 0.2, [3, 3, 0]) == [
        "ranks waited 20.0% of the time in 50 steps, in 33 of them for rank 3: look at its machine, disk and network"
    ]


@pytest.mark.parametrize(("ranks", "wait_s", "steps"), [(4, 0.04, 200), (1, 0.5, 200), (4, 0.5, 59)])
def test_nothing_is_said_of_short_waits_one_rank_or_too_few_steps(
    ranks: int, wait_s: float, steps: int
) -> None:
    assert sentences(ranks, wait_s, [0, 1], steps) == []
