"""What stages of a pipeline run when: dependencies, activations, messages that must meet, idle time."""

from collections import deque
from fractions import Fraction
from itertools import pairwise
from typing import get_args

import pytest

from reelweave.train.parallel.pipeline.order import PipelineSchedule, Turn, turns

SIZES = [(P, M) for P in (1, 2, 3, 4, 7) for M in (1, 2, 3, 4, 5, 8, 16)]
SCHEDULES = get_args(PipelineSchedule)
TOKENS, GRADIENT = "tokens", "gradient"


def orders(schedule: PipelineSchedule, stages: int, microbatches: int) -> list[list[Turn]]:
    return [turns(schedule, stage, stages, microbatches) for stage in range(stages)]


def taken(turn: Turn, stage: int, stages: int) -> tuple[str, int, int, int] | None:
    """The message that a turn begins with: what, of which microbatch, from whom, to whom."""
    if turn.forward:
        return (TOKENS, turn.microbatch, stage - 1, stage) if stage else None
    return (GRADIENT, turn.microbatch, stage + 1, stage) if stage + 1 < stages else None


def sent(turn: Turn, stage: int, stages: int) -> tuple[str, int, int, int] | None:
    """The message that a turn ends with."""
    if turn.forward:
        return (TOKENS, turn.microbatch, stage, stage + 1) if stage + 1 < stages else None
    return (GRADIENT, turn.microbatch, stage, stage - 1) if stage else None


def meet(order: list[list[Turn]]) -> bool:
    """Whether all stages come to their end where a message needs both ends at once.

    Behind each turn a stage sends what it made and takes what it needs next, together, and waits for both: nothing is
    ever under way.
    """
    stages = len(order)
    done = [0] * stages
    waits = [{taken(turns_[0], s, stages)} - {None} for s, turns_ in enumerate(order)]
    while any(done[s] < len(order[s]) for s in range(stages)):
        met = {message for message in set.union(*waits) if all(message in waits[end] for end in message[2:])}
        for wait in waits:
            wait -= met
        free = [s for s in range(stages) if done[s] < len(order[s]) and not waits[s]]
        if not met and not free:
            return False
        for s in free:
            turn, done[s] = order[s][done[s]], done[s] + 1
            next_ = order[s][done[s]] if done[s] < len(order[s]) else None
            waits[s] = {sent(turn, s, stages), next_ and taken(next_, s, stages)} - {None}
    return True


def meet_in_lanes(order: list[list[Turn]]) -> bool:
    """Whether all stages come to their end where tokens have a lane at each stage, and gradients one.

    A lane moves one message at a time, in the order in which they are asked for; nobody waits for what it sends.
    """
    stages = len(order)
    done, asked = [0] * stages, [False] * stages
    lanes = {(s, what): deque() for s in range(stages) for what in (TOKENS, GRADIENT)}
    moves = True
    while moves:
        moves = False
        for s in range(stages):
            if done[s] == len(order[s]):
                continue
            turn = order[s][done[s]]
            needed = taken(turn, s, stages)
            if needed and not asked[s]:
                lanes[s, needed[0]].append(needed)
                asked[s] = moves = True
            if needed is None or needed not in lanes[s, needed[0]]:
                if message := sent(turn, s, stages):
                    lanes[s, message[0]].append(message)
                done[s], asked[s], moves = done[s] + 1, False, True
        for lane in lanes.values():
            if lane and all(
                lanes[end, lane[0][0]] and lanes[end, lane[0][0]][0] == lane[0] for end in lane[0][2:]
            ):
                message = lane[0]
                for end in message[2:]:
                    lanes[end, message[0]].popleft()
                moves = True
    return done == [len(turns_) for turns_ in order]


def ends(order: list[list[Turn]], forward: int, backward: int) -> list[int]:
    """When each stage is through, if a message takes no time and nobody waits to send."""
    stages, arrived, clock = len(order), {}, [0] * len(order)
    left = [list(turns_) for turns_ in order]
    while any(left):
        for s in range(stages):
            while left[s] and ((message := taken(left[s][0], s, stages)) is None or message in arrived):
                turn = left[s].pop(0)
                clock[s] = max(clock[s], arrived.get(message, 0)) + (forward if turn.forward else backward)
                arrived[sent(turn, s, stages)] = clock[s]
    return clock


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_every_microbatch_runs_forward_and_then_backward_once(schedule, P, M):
    for order in orders(schedule, P, M):
        assert sorted(order) == sorted(Turn(forward, m) for forward in (False, True) for m in range(M))
        assert all(order.index(Turn(True, m)) < order.index(Turn(False, m)) for m in range(M))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_messages_leave_in_the_order_in_which_they_are_taken(schedule, P, M):
    order = orders(schedule, P, M)
    for s, other in [*pairwise(range(P)), *((b, a) for a, b in pairwise(range(P)))]:
        left = [m for t in order[s] if (m := sent(t, s, P)) and m[3] == other]
        came = [m for t in order[other] if (m := taken(t, other, P)) and m[2] == s]
        assert left == came


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_no_stage_waits_for_ever_where_nothing_is_buffered(schedule, P, M):
    assert meet(orders(schedule, P, M))
    assert meet_in_lanes(orders(schedule, P, M))


def test_stages_that_do_not_agree_wait_for_ever():
    assert not meet([turns("gpipe", 0, 2, 4), turns("1f1b", 1, 2, 4)])
    backwards_first = [Turn(False, 0), Turn(True, 0)]
    assert not meet_in_lanes([backwards_first, turns("1f1b", 1, 2, 1)])


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_microbatches_alive_are_bounded_by_the_stages_behind(P, M):
    def alive(order):
        counts = [sum(1 if turn.forward else -1 for turn in order[: n + 1]) for n in range(len(order))]
        return max(counts)

    assert [alive(order) for order in orders("1f1b", P, M)] == [min(P - s, M) for s in range(P)]
    assert [alive(order) for order in orders("gpipe", P, M)] == [M] * P


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_the_bubble_is_that_of_the_formula(schedule, P, M):
    for backward in (1, 2, 3):
        step = max(ends(orders(schedule, P, M), 1, backward))
        assert 1 - Fraction(M * (1 + backward), step) == Fraction(P - 1, M + P - 1)
