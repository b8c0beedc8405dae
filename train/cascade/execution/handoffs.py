"""Who gives what to whom in a step: a pure function of the order, the same on every rank.

Arachne, section IV-D: what a DiT takes stays where it is on ranks that have made it, goes on from one of them to the
others of the DiT's group, and is sent where no rank of the group has it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from train.cascade.execution.work import Part, Work
from train.cascade.problem import Cascade, Module
from train.cascade.schedule import Run


class Sending(NamedTuple):
    """A message from one rank to another.

    Attributes:
        run: the cascade that takes it.
        source: the rank that sends.
        target: the rank that receives.
        parts: what is sent.
    """

    run: Cascade
    source: int
    target: int
    parts: tuple[Part, ...]


class Input(NamedTuple):
    """What a text or VAE cascade takes of its sample's owner for one of its parts.

    Attributes:
        cascade: that takes it.
        number: of the part.
        sending: the message; None where the owner makes the part itself.
    """

    cascade: Cascade
    number: int
    sending: Sending | None


class Handoff(NamedTuple):
    """What a module gives to the DiT of its sample.

    Attributes:
        cascade: that gives it, or would if it were not stored.
        stored: whether the owner has it from the start.
        parts: what it is.
        givers: ranks that have it when it is made; the owner where it is stored.
        takers: ranks of the DiT.
        first: the taker that has it first, and gives it to those of its group that have it not.
        sending: the message by which the first one gets it; None where it has made it itself.
    """

    cascade: Cascade
    stored: bool
    parts: tuple[Part, ...]
    givers: tuple[int, ...]
    takers: tuple[int, ...]
    first: int
    sending: Sending | None

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def spreads(self) -> bool:
        """Whether there are takers that get it from the first one."""
        return not set(self.takers) <= {*self.givers, self.first}


class Flow(NamedTuple):
    """All that changes hands in a step.

    Attributes:
        inputs: of text and VAE cascades.
        handoffs: to DiTs.
    """

    inputs: tuple[Input, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def sendings(self) -> list[tuple[Input | Handoff, Sending]]:
        """All messages; the place of each is its tag."""
        found: list[tuple[Input | Handoff, Sending]] = []
        found += [(one, one.sending) for one in self.inputs if one.sending]
        found += [(one, one.sending) for one in self.handoffs if one.sending]
        return found


def flow(runs: Iterable[Run], work: Work, ranks_per_node: int) -> Flow:
    """What changes hands.

    Args:
        runs: all of a step.
        work: what they compute.
        ranks_per_node: between ranks of one node messages are preferred.
    """
    by_cascade = {run.cascade: run for run in sorted(runs, key=lambda run: run.cascade)}
    inputs, moves = [], []
    for cascade, run in by_cascade.items():
        if cascade.module == Module.DIT:
            for module in (Module.TEXT, Module.VAE):
                giving = Cascade(cascade.sample, module)
                if parts := tuple(work.gives(giving)):
                    giver = by_cascade.get(giving)
                    givers = giver.gpus if giver else (work.owner(cascade.sample),)
                    source, first = way(givers, run.gpus, cascade.sample, ranks_per_node)
                    sending = Sending(cascade, source, first, parts) if source != first else None
                    moves.append(Handoff(giving, giver is None, parts, givers, run.gpus, first, sending))
        else:
            owner = work.owner(cascade.sample)
            for number, part in enumerate(work.wants(cascade)):
                maker = run.gpus[number % len(run.gpus)]
                sending = Sending(cascade, owner, maker, (part,)) if maker != owner else None
                inputs.append(Input(cascade, number, sending))
    return Flow(tuple(inputs), tuple(moves))


def way(givers: Sequence[int], takers: Sequence[int], sample: int, ranks_per_node: int) -> tuple[int, int]:
    """From which giver to which taker a result goes first; the same rank where one is both.

    Of ways that are as good as each other, samples take turns, so that no rank carries all messages.
    """
    if shared := sorted(set(givers) & set(takers)):
        return shared[0], shared[0]
    ways = [(giver, taker) for giver in givers for taker in takers]
    near = [(giver, taker) for giver, taker in ways if giver // ranks_per_node == taker // ranks_per_node]
    best = near or ways
    return best[sample % len(best)]


def share(parts: int, degree: int, number: int) -> range:
    """Which parts of a cascade the number-th rank of its group makes: they are dealt out in turn."""
    return range(number, parts, degree)


def lying(moves: Flow) -> dict[int, dict[int, int]]:
    """Bytes of each sample that lie on a rank at once for handoffs, at most: {sample: {rank: bytes}}.

    What owners hold because they have read it is not counted.
    """
    found: dict[int, dict[int, int]] = {}

    def add(sample: int, rank: int, size: int) -> None:
        ranks = found.setdefault(sample, {})
        ranks[rank] = ranks.get(rank, 0) + size

    for one in moves.inputs:
        if one.sending:
            add(one.cascade.sample, one.sending.target, one.sending.parts[0].bytes)
    for move in moves.handoffs:
        for rank in {*move.givers, *move.takers}:
            add(move.cascade.sample, rank, move.bytes)
    return found
