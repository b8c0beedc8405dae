"""The order keeps precedence and its room, whatever the plan."""

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.execution.handoffs import handoff_bytes, plan_transfers
from reelweave.train.cascade.execution.order import Open, bound_open_samples, in_order, with_openings
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from tests.train.cascade.execution.plans import TinyWork, random_plan, tiny_bundle


@pytest.fixture(scope="module")
def bundle():
    return tiny_bundle(torch.float32)


def ordered(bundle, seed, limit=None, lookahead=2):
    plan = random_plan(seed, 6)
    moves = plan_transfers(plan.schedule.runs, TinyWork(bundle, plan.samples, 0, torch.float32), 3)
    sizes = handoff_bytes(moves)
    order = in_order(plan.schedule.runs)
    most = max((max(ranks.values()) for ranks in sizes.values()), default=0)
    events = with_openings(order, moves, lookahead)
    return plan, sizes, bound_open_samples(events, sizes, None if limit is None else int(limit * most)), order


def peak(events, sizes, ranks=6):
    """What open samples take of the fullest rank."""
    held, most = [0] * ranks, 0
    for event in events:
        sample = event.sample if isinstance(event, Open) else event.cascade.sample
        ends = isinstance(event, Run) and event.cascade.module == Module.DIT
        if isinstance(event, Open) or ends:
            for rank, size in sizes.get(sample, {}).items():
                held[rank] += -size if ends else size
        most = max(most, *held)
    return most


@pytest.mark.parametrize("limit", [None, 1.0, 1.5])
def test_every_cascade_runs_once_behind_what_it_needs_and_behind_its_sample_s_opening(bundle, limit):
    for seed in range(60):
        plan, _, events, _ = ordered(bundle, seed, limit)
        runs = [event for event in events if isinstance(event, Run)]
        assert sorted(runs, key=lambda run: run.cascade) == sorted(
            plan.schedule.runs, key=lambda run: run.cascade
        )
        seen, opened = set(), set()
        for event in events:
            if isinstance(event, Open):
                assert event.sample not in opened
                opened.add(event.sample)
                continue
            assert event.cascade.sample in opened
            if event.cascade.module == Module.DIT:
                needs = {run.cascade for run in runs if run.cascade.sample == event.cascade.sample}
                assert needs - {event.cascade} <= seen
            seen.add(event.cascade)


def test_no_rank_ever_has_more_than_the_limit(bundle):
    tighter = 0
    for seed in range(120):
        _, sizes, events, order = ordered(bundle, seed, limit=1.0)
        most = max((max(ranks.values()) for ranks in sizes.values()), default=0)
        assert peak(events, sizes) <= most
        tighter += [event for event in events if isinstance(event, Run)] != order
    assert tighter > 10


def test_without_a_limit_the_plan_s_order_stays(bundle):
    for seed in range(20):
        _, _, events, order = ordered(bundle, seed)
        assert [event for event in events if isinstance(event, Run)] == order


def test_what_owners_send_is_expected_some_cascades_ahead_of_its_use(bundle):
    events = ordered(bundle, 3, lookahead=0)[2]
    ahead = ordered(bundle, 3, lookahead=3)[2]
    places = [runs_before_opening(found) for found in (events, ahead)]
    assert all(places[1][sample] <= places[0][sample] for sample in places[0])
    assert any(places[1][sample] < places[0][sample] for sample in places[0])


def runs_before_opening(events):
    return {
        event.sample: sum(isinstance(before, Run) for before in events[:place])
        for place, event in enumerate(events)
        if isinstance(event, Open)
    }


def test_a_sample_that_alone_needs_more_is_told(bundle):
    with pytest.raises(UsageError, match=r"handoff_mib.*microbatch"):
        for seed in range(5):
            ordered(bundle, seed, limit=0.5)


def test_a_dit_comes_behind_a_module_that_takes_no_time():
    dit = Run(Cascade(0, Module.DIT), 1.0, 2.0, (0,))
    vae = Run(Cascade(1, Module.VAE), 1.0, 1.0, (1,))
    assert in_order(Schedule.of([dit, vae], 2).runs) == [vae, dit]
