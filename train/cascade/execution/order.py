"""Common execution order of all ranks, with handoffs bounded by a buffer size."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.execution.handoffs import Transfers
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Run

HandoffBytes = Mapping[int, Mapping[int, int]]
"""Handoff bytes of a sample on each rank, {sample: {rank: bytes}}."""


class Open(NamedTuple):
    """Event after which a sample may use handoff buffers: stored outputs are sent, receives are posted."""

    sample: int


Event = Run | Open


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Sort runs as planned; a DiT follows its inputs even if modules take no time."""
    return sorted(runs, key=lambda run: (run.start_s, run.cascade.module == Module.DIT, run.cascade))


def with_openings(order: Sequence[Run], moves: Transfers, lookahead: int) -> list[Event]:
    """Insert an `Open` event before each sample's first run, or earlier where its owner sends a message.

    The receiver posts such a message ``lookahead`` of its own cascades before use.
    """
    # First use of each sample, and each rank's own cascades in order.
    first_of: dict[int, int] = {}
    queues: dict[int, list[int]] = {}
    place_of = {}
    for index, run in enumerate(order):
        first_of.setdefault(run.cascade.sample, index)
        place_of[run.cascade] = index
        for rank in run.gpus:
            queues.setdefault(rank, []).append(index)
    # Receivers post messages ahead: the sample must be open on all ranks by then.
    sent = [transfer.message for transfer in moves.inputs if transfer.message]
    sent += [move.message for move in moves.handoffs if move.message and move.stored]
    for message in sent:
        queue, index = queues[message.target], place_of[message.run]
        ahead = queue[max(0, bisect_left(queue, index) - lookahead)]
        sample = message.run.sample
        first_of[sample] = min(first_of[sample], ahead)
    # Openings before the runs that need them, those of one place by sample.
    events: list[Event] = []
    opened = sorted(first_of, key=lambda sample: (first_of[sample], sample))[::-1]
    for index, run in enumerate(order):
        while opened and first_of[opened[-1]] <= index:
            events.append(Open(opened.pop()))
        events.append(run)
    return events


def bound_open_samples(events: Sequence[Event], sizes: HandoffBytes, limit: int | None) -> tuple[Event, ...]:
    """Reorder events so that open samples never exceed a limit on any rank.

    A sample reserves its bytes on all of its ranks when it is opened and releases them with its DiT. If they do
    not fit, it
    opens right before its first run, after the open sample with the earliest DiT has finished. In the worst
    case samples
    run one after the other.

    Args:
        events: each sample opens before its first run; a DiT follows its inputs.
        sizes: handoff bytes of each sample.
        limit: bytes of a rank; None: no limit, and the order stays.

    Raises:
        UsageError: a single sample exceeds the limit.
    """
    if limit is None:
        return tuple(events)
    for sample, ranks in sizes.items():
        if max(ranks.values()) > limit:
            max_mib = max(ranks.values()) / 2**20
            raise UsageError(
                f"cascade.handoff_mib is {limit / 2**20:g}, and microbatch {sample} alone hands over {max_mib:.2f} MiB:"
                " allow so much, or make microbatches smaller"
            )
    return tuple(_Bounded(events, sizes, limit).events())


class _Bounded:
    def __init__(self, events: Sequence[Event], sizes: HandoffBytes, limit: int) -> None:
        self._given, self._sizes, self._limit = events, sizes, limit
        self._left: dict[int, list[Run]] = {}
        self._ends: dict[int, int] = {}
        for index, event in enumerate(events):
            if isinstance(event, Run):
                self._left.setdefault(event.cascade.sample, []).append(event)
                self._ends[event.cascade.sample] = index
        self._open: set[int] = set()
        self._held: dict[int, int] = {}
        self._found: list[Event] = []

    def events(self) -> list[Event]:
        for event in self._given:
            if isinstance(event, Open):
                if (
                    self._left[event.sample]
                    and event.sample not in self._open
                    and not self._full(event.sample)
                ):
                    self._take_room(event.sample)
            elif event in self._left[event.cascade.sample]:
                self._run(event)
        return self._found

    def _run(self, run: Run) -> None:
        sample = run.cascade.sample
        if sample not in self._open:
            while full := self._full(sample):
                holders = [sample for sample in self._open if full & self._sizes[sample].keys()]
                for earlier in tuple(self._left[min(holders, key=self._ends.__getitem__)]):
                    self._run(earlier)
            self._take_room(sample)
        self._found.append(run)
        self._left[sample].remove(run)
        if run.cascade.module == Module.DIT:
            self._open.remove(sample)
            for rank, size in self._sizes.get(sample, {}).items():
                self._held[rank] -= size

    def _full(self, sample: int) -> set[int]:
        """Return the ranks without space for a sample."""
        rank_bytes = self._sizes.get(sample, {})
        return {rank for rank, size in rank_bytes.items() if self._held.get(rank, 0) + size > self._limit}

    def _take_room(self, sample: int) -> None:
        self._open.add(sample)
        self._found.append(Open(sample))
        for rank, size in self._sizes.get(sample, {}).items():
            self._held[rank] = self._held.get(rank, 0) + size
