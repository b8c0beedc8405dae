"""Execution of a plan on this rank: cascades in the common order, each as soon as its inputs are here.

No cascade waits for its planned time. Progress is guaranteed: the first remaining cascade is next on each of
its ranks, and its inputs come from cascades before it. Sends do not wait for the receiver. If the handoff
buffer is full, a rank waits only for messages to cascades before its next one.
"""

from collections.abc import Sequence

from reelweave.train.cascade.execution.agreement import agree
from reelweave.train.cascade.execution.channel import Channel
from reelweave.train.cascade.execution.handoffs import handoff_bytes, plan_transfers
from reelweave.train.cascade.execution.ops import CascadeOps
from reelweave.train.cascade.execution.order import Event, bound_open_samples, in_order, with_openings
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.execution.step import AgreedStep, StepReport
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import StepClock


class Executor:
    """Executor of steps on one rank.

    Args:
        world: all ranks; GPU k of a plan is rank k.
        pool: process groups.
        limit_bytes: handoff buffer of a rank, without inputs that the rank itself has read; None: as much as
            the plan needs.
        lookahead: number of cascades by which a message from an owner may precede its use.
        ranks_per_node: ranks of a node, between which messages are preferred; None: all ranks share one node.
    """

    def __init__(
        self,
        world: World,
        pool: GroupPool,
        limit_bytes: int | None = None,
        lookahead: int = 2,
        ranks_per_node: int | None = None,
    ) -> None:
        self._world, self._pool = world, pool
        self._limit_bytes, self._lookahead = limit_bytes, lookahead
        self._ranks_per_node = ranks_per_node or world.size

    def run(self, schedule: Schedule, work: CascadeOps, clock: StepClock) -> StepReport:
        """Run a step on this rank; all ranks call it with the same schedule.

        Raises:
            RunError: the ranks have different plans.
            UsageError: the handoffs of one sample exceed the buffer.
        """
        order = in_order(schedule.runs)
        moves = plan_transfers(order, work, self._ranks_per_node)
        sizes = handoff_bytes(moves)
        events: Sequence[Event] = with_openings(order, moves, self._lookahead)
        events = bound_open_samples(events, sizes, self._limit_bytes)
        with clock.part("sync"):
            agree(self._world, events, work)
        step = AgreedStep(events, moves, sizes, self._limit_bytes, work, self._pool, self._world, clock)
        if self._pool.channel is None:
            return step.run(None)
        with Channel(self._pool.channel, self._world.device) as channel:
            return step.run(channel)
