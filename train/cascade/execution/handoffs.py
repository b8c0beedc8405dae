"""Transfers of a step between ranks: a pure function of the order, identical on every rank.

Arachne, section IV-D: inputs of a DiT stay in place on ranks that made them. One of these broadcasts them to
the rest of the DiT's group. A message is needed only if no rank of the group made them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reelweave.train.cascade.execution.ops import CascadeOps, TensorSpec
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run


class Message(NamedTuple):
    """A message from one rank to another.

    Attributes:
        run: receiving cascade.
        source: sending rank.
        target: receiving rank.
        parts: tensors of the message.
    """

    run: Cascade
    source: int
    target: int
    parts: tuple[TensorSpec, ...]


class Input(NamedTuple):
    """One input part of a text or VAE cascade, held by the sample's owner.

    Attributes:
        cascade: receiving cascade.
        part_index: index of the part.
        message: the message; None if the owner itself computes the part.
    """

    cascade: Cascade
    part_index: int
    message: Message | None


class Handoff(NamedTuple):
    """Output of a module for the DiT of its sample.

    Attributes:
        cascade: producing cascade, also if the output is stored.
        stored: True if the owner has read the output from the dataset.
        parts: output tensors.
        givers: ranks that hold the output when it is made; the owner if it is stored.
        takers: ranks of the DiT.
        first: the first taker to hold the output; it broadcasts to the rest of its group.
        message: the message to ``first``; None if that rank made the output.
    """

    cascade: Cascade
    stored: bool
    parts: tuple[TensorSpec, ...]
    givers: tuple[int, ...]
    takers: tuple[int, ...]
    first: int
    message: Message | None

    @property
    def bytes(self) -> int:
        """Total size of the parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def broadcasts(self) -> bool:
        """True if takers receive the output from ``first``."""
        return not set(self.takers) <= {*self.givers, self.first}


class Transfers(NamedTuple):
    """All transfers of a step.

    Attributes:
        inputs: inputs of text and VAE cascades.
        handoffs: outputs for DiTs.
    """

    inputs: tuple[Input, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def messages(self) -> list[tuple[Input | Handoff, Message]]:
        """All messages; the index of each is its tag."""
        pairs: list[tuple[Input | Handoff, Message]] = []
        pairs += [(transfer, transfer.message) for transfer in self.inputs if transfer.message]
        pairs += [(transfer, transfer.message) for transfer in self.handoffs if transfer.message]
        return pairs


def plan_transfers(runs: Iterable[Run], work: CascadeOps, ranks_per_node: int) -> Transfers:
    """Plan the transfers of a step.

    Args:
        runs: all runs of the step.
        work: computation of the step.
        ranks_per_node: ranks of a node, between which messages are preferred.
    """
    by_cascade = {run.cascade: run for run in sorted(runs, key=lambda run: run.cascade)}
    inputs, moves = [], []
    for cascade, run in by_cascade.items():
        if cascade.module == Module.DIT:
            for module in (Module.TEXT, Module.VAE):
                giving = Cascade(cascade.sample, module)
                if parts := tuple(work.output_specs(giving)):
                    giver = by_cascade.get(giving)
                    givers = giver.gpus if giver else (work.owner(cascade.sample),)
                    source, first = route(givers, run.gpus, cascade.sample, ranks_per_node)
                    message = Message(cascade, source, first, parts) if source != first else None
                    moves.append(Handoff(giving, giver is None, parts, givers, run.gpus, first, message))
        else:
            owner = work.owner(cascade.sample)
            for index, part in enumerate(work.input_specs(cascade)):
                maker = run.gpus[index % len(run.gpus)]
                message = Message(cascade, owner, maker, (part,)) if maker != owner else None
                inputs.append(Input(cascade, index, message))
    return Transfers(tuple(inputs), tuple(moves))


def route(givers: Sequence[int], takers: Sequence[int], sample: int, ranks_per_node: int) -> tuple[int, int]:
    """Choose the giver and the taker of a first message; the same rank if one is both.

    Samples rotate among equally good routes, so that no rank carries all messages.
    """
    if shared := sorted(set(givers) & set(takers)):
        return shared[0], shared[0]
    ways = [(giver, taker) for giver in givers for taker in takers]
    near = [(giver, taker) for giver, taker in ways if giver // ranks_per_node == taker // ranks_per_node]
    best = near or ways
    return best[sample % len(best)]


def share(parts: int, degree: int, index: int) -> range:
    """Return the parts of a cascade assigned round-robin to rank ``index`` of its group."""
    return range(index, parts, degree)


def handoff_bytes(moves: Transfers) -> dict[int, dict[int, int]]:
    """Return the peak handoff bytes of each sample on each rank: {sample: {rank: bytes}}.

    Inputs that an owner has read itself are not counted.
    """
    sample_bytes: dict[int, dict[int, int]] = {}

    def add(sample: int, rank: int, size: int) -> None:
        ranks = sample_bytes.setdefault(sample, {})
        ranks[rank] = ranks.get(rank, 0) + size

    for transfer in moves.inputs:
        if transfer.message:
            add(transfer.cascade.sample, transfer.message.target, transfer.message.parts[0].bytes)
    for move in moves.handoffs:
        size = move.bytes
        for rank in {*move.givers, *move.takers}:
            add(move.cascade.sample, rank, size)
    return sample_bytes
