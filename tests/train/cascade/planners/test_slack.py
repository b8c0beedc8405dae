import numpy as np
import pytest

from reelweave.train.cascade.paper.cases import DEGREES, arachne
from reelweave.train.cascade.paper.simulate import execute, needs
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.scheduling.schedule_graph import ScheduleGraph
from tests.train.cascade.placement.placements import drawn
from tests.train.cascade.slack import least_slack_first, slack_s


def test_slack_of_a_schedule_of_three():
    """Of two on one GPU none, of the other what the first takes less."""
    runs = [
        Run(Cascade(0, Module.DIT), 0.0, 4.0, (0,)),
        Run(Cascade(1, Module.DIT), 0.0, 1.0, (1,)),
        Run(Cascade(2, Module.DIT), 4.0, 5.0, (0, 1)),
    ]
    assert slack_s(Schedule.of(runs, 2)) == pytest.approx([0, 3, 0])


def test_the_last_to_end_has_no_slack():
    schedule = plan(arachne()).schedule
    slack_R = slack_s(schedule)
    assert (slack_R >= -1e-9).all()
    executed = execute(schedule)
    last = max(executed.runs, key=lambda run: run.end_s).cascade
    assert slack_R[[run.cascade for run in schedule.runs].index(last)] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("near", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_an_order_by_slack_is_one_that_all_gpus_can_follow(near, seed):
    schedule = drawn(6, 12, DEGREES, seed)[1]
    order_R = least_slack_first(schedule, near)
    assert sorted(order_R.tolist()) == list(range(len(schedule.runs)))
    rank = np.argsort(order_R)
    assert all(rank[giver] < rank[taker] for taker, own in enumerate(needs(schedule.runs)) for giver in own)
    on = [
        sorted((n for n, run in enumerate(schedule.runs) if gpu in run.gpus), key=lambda n: rank[n])
        for gpu in range(schedule.gpus)
    ]
    planned_R = np.array([run.end_s - run.start_s for run in schedule.runs])
    executed = execute(schedule, on=on)
    assert executed.makespan_s == pytest.approx(ScheduleGraph.of(schedule).ends(planned_R, order_R).max())


def test_of_near_starts_the_one_with_less_slack_goes_first():
    runs = [
        Run(Cascade(0, Module.VAE), 0.0, 1.0, (0,)),
        Run(Cascade(1, Module.VAE), 0.0, 1.0, (1,)),
        Run(Cascade(1, Module.DIT), 1.0, 9.0, (1,)),
        Run(Cascade(0, Module.DIT), 1.0, 2.0, (0,)),
    ]
    schedule = Schedule.of(runs, 2)
    order = [schedule.runs[number].cascade for number in least_slack_first(schedule, 0.1)]
    assert order[:2] == [Cascade(1, Module.VAE), Cascade(0, Module.VAE)]
    assert order[2:] == [Cascade(1, Module.DIT), Cascade(0, Module.DIT)]
