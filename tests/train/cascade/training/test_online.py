"""What ranks measure changes the next plans."""

import numpy as np
import pytest

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.online.settled import Learned
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.rank_order import RankOrder
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.simulation.cases import drawn_at_720p
from reelweave.train.cascade.simulation.simulate import Noise, execute
from reelweave.train.cascade.training.online import OnlineCorrection, compute_times
from reelweave.train.cascade.training.timelines import RankRun
from reelweave.train.config.cascade import CorrectionConfig

GPUS = 16


@pytest.fixture
def problem():
    return drawn_at_720p(16, GPUS, seed=1)


def by_ranks(executed):
    """What each rank tells."""
    return [
        [RankRun(run.cascade, run.start_s, run.end_s) for run in executed.runs if rank in run.gpus]
        for rank in range(executed.gpus)
    ]


def really(problem, placed, noise, seed=0):
    """What becomes of a plan where cascades take the cost model's time, but for the noise."""
    place = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
    seconds = [problem.seconds_SMK[(*run.cascade, place[len(run.gpus)])] for run in placed.runs]
    runs = [run._replace(end_s=run.start_s + taken) for run, taken in zip(placed.runs, seconds, strict=True)]
    planned = Schedule(tuple(runs), placed.gpus)
    return execute(planned, noise.factors(planned, np.random.default_rng(seed)))


def after_steps(problem, noise, steps=6, correction=True):
    online = OnlineCorrection(
        CorrectionConfig() if correction else None, GroupMenu.of(GPUS, problem.degrees_K), per_node=8
    )
    for step in range(steps):
        planned = online.plan_step(problem, step, online.found)
        online.observe(planned, by_ranks(really(problem, planned.schedule, noise, step)))
    return online


def test_a_cascade_s_time_counts_from_when_its_last_rank_began():
    run = Run(Cascade(0, Module.DIT), 0.0, 4.0, (0, 1))
    summary = [[RankRun(run.cascade, 1.0, 6.1)], [RankRun(run.cascade, 3.0, 6.0)]]
    [found] = compute_times(Schedule.of([run], 2), summary).runs
    assert (found.start_s, found.end_s) == (3.0, 6.1)


def test_costs_that_were_off_are_corrected(problem):
    online = after_steps(problem, Noise(sigma=0.01, slow=dict.fromkeys(range(GPUS), 1.5)))
    assert not online.found.correction.slow
    assert online.found.correction.factors[Module.DIT, 8] == pytest.approx(1.5, rel=0.2)


def test_a_slow_rank_is_named_and_planned_around(problem):
    noise = Noise(sigma=0.02, slow={5: 2.0})
    online = after_steps(problem, noise)
    # What ran the same cascades all the time is named with it.
    assert 5 in online.found.correction.slow
    assert any("GPU 5" in sentence for sentence in online.summary())
    assert set(online.found.order.ranks[-8:]) == set(range(8)), "its node is last"
    assert 5 in online.found.order.ranks[-len(online.found.correction.slow) :]

    def executed_s(found):
        placed = online.plan_step(problem, 0, found).schedule
        return execute(
            placed, Noise(sigma=0, slow={5: 2.0}).factors(placed, np.random.default_rng(0))
        ).makespan_s

    assert executed_s(online.found) < executed_s(Learned(RankOrder.of(GPUS)))


def test_without_a_configuration_nothing_is_believed(problem):
    online = after_steps(problem, Noise(slow={5: 2.0}), steps=2, correction=False)
    assert online.found == Learned(RankOrder.of(GPUS))
