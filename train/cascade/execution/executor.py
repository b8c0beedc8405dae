"""Runs a plan on this rank: its cascades in the one order of all ranks, each as soon as it can.

Nothing waits for a time. Of the cascades that are left, the first in the order is next on each of its ranks, and what
it takes is given by cascades before it, so some rank can always go on. Messages are posted without waiting for who
takes them; where their room is short, a rank waits for those alone that cascades before its next one take.
"""

from collections.abc import Sequence

from train.cascade.execution.agreement import agree
from train.cascade.execution.channel import Channel
from train.cascade.execution.handoffs import flow, lying
from train.cascade.execution.order import Event, bounded, in_order, with_openings
from train.cascade.execution.pool import Pool
from train.cascade.execution.step import Report, Step
from train.cascade.execution.work import Work
from train.cascade.schedule import Schedule
from train.distributed.world import World
from train.measure.timings import StepClock


class Executor:
    """Runs steps.

    Args:
        world: all ranks; GPU k of a plan is rank k.
        pool: of their groups.
        limit_bytes: for handoffs on a rank, without what owners hold because they have read it; None: as many as a
            plan needs.
        lookahead: how many cascades ahead of its use an owner's message may come.
        ranks_per_node: between ranks of one node messages are preferred; None: all are on one.
    """

    def __init__(
        self,
        world: World,
        pool: Pool,
        limit_bytes: int | None = None,
        lookahead: int = 2,
        ranks_per_node: int | None = None,
    ) -> None:
        self._world, self._pool = world, pool
        self._limit_bytes, self._lookahead = limit_bytes, lookahead
        self._ranks_per_node = ranks_per_node or world.size

    def run(self, schedule: Schedule, work: Work, clock: StepClock) -> Report:
        """Runs a step on this rank; all ranks call it with the same schedule.

        Raises:
            RunError: the ranks mean to run different plans.
            UsageError: handoffs do not fit their room.
        """
        order = in_order(schedule.runs)
        moves = flow(order, work, self._ranks_per_node)
        sizes = lying(moves)
        events: Sequence[Event] = with_openings(order, moves, self._lookahead)
        events = bounded(events, sizes, self._limit_bytes)
        with clock.part("sync"):
            agree(self._world, events, work)
            self._pool.prepare_runs(order)
        step = Step(events, moves, sizes, self._limit_bytes, work, self._pool, self._world, clock)
        if self._pool.channel is None:
            return step.run(None)
        with Channel(self._pool.channel, self._world.device) as channel:
            return step.run(channel)
