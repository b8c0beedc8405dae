import numpy as np
import pytest

from reelweave.train.cascade.paper.cases import DEGREES
from reelweave.train.cascade.paper.simulate import Noise, execute, needs
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.schedule_graph import ScheduleGraph
from tests.train.cascade.placement.placements import drawn


def case(seed: int) -> tuple[Schedule, np.ndarray]:
    draw = np.random.default_rng(seed)
    schedule = drawn(int(draw.integers(2, 12)), int(draw.integers(2, 25)), DEGREES, seed)[1]
    seconds_R = np.array([run.end_s - run.start_s for run in schedule.runs])
    return schedule, seconds_R * Noise(sigma=0.3).factors(schedule, draw)


@pytest.mark.parametrize("seed", range(20))
def test_ends_are_those_of_an_execution(seed):
    schedule, seconds_R = case(seed)
    planned_R = np.array([run.end_s - run.start_s for run in schedule.runs])
    executed = {run.cascade: run.end_s for run in execute(schedule, seconds_R / planned_R).runs}
    assert ScheduleGraph.of(schedule).ends(seconds_R) == pytest.approx(
        [executed[run.cascade] for run in schedule.runs]
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_run_may_be_late_by_its_slack_and_no_more(seed):
    schedule, seconds_R = case(seed)
    lines = ScheduleGraph.of(schedule)
    makespan_s, slack_R = lines.ends(seconds_R).max(), lines.slack(seconds_R)
    assert slack_R.min() == pytest.approx(0, abs=1e-9)
    for number, slack_s in enumerate(slack_R):
        for late_s, moved_s in ((slack_s, 0.0), (slack_s + 0.5, 0.5)):
            longer_R = seconds_R.copy()
            longer_R[number] += late_s
            assert lines.ends(longer_R).max() == pytest.approx(makespan_s + moved_s)


def test_another_order():
    """Any in which what a run needs comes first."""
    schedule, seconds_R = case(1)
    draw = np.random.default_rng(0)
    first = draw.random(len(schedule.runs))
    for number, givers in enumerate(needs(schedule.runs)):
        first[number] = max([first[number], *(first[giver] + 1e-9 for giver in givers)])
    order_R = np.argsort(first)
    rank = np.argsort(order_R)
    planned_R = np.array([run.end_s - run.start_s for run in schedule.runs])
    on = [
        sorted((n for n, run in enumerate(schedule.runs) if gpu in run.gpus), key=lambda n: rank[n])
        for gpu in range(schedule.gpus)
    ]
    executed = execute(schedule, seconds_R / planned_R, on=on)
    assert ScheduleGraph.of(schedule).ends(seconds_R, order_R).max() == pytest.approx(executed.makespan_s)


def test_no_runs():
    assert ScheduleGraph.of(Schedule((), 4)).slack(np.zeros(0)).shape == (0,)
