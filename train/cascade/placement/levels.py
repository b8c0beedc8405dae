"""How good a place is for a cascade: Arachne's priorities (section IV-C) as six numbers, most important first."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from train.cascade.placement.topology import Topology


class Levels(NamedTuple):
    """Lower is better, and a lower number decides before all that come after it.

    The paper says what to prefer and not by how much; these are the numbers that we give to it.

    Attributes:
        nodes: over which the cascade lies, but for the one that it needs (priority 1).
        imbalance: most less fewest of its GPUs in one of these nodes (priority 2).
        off_rail: of its GPUs, those without another on their rail in each of its other nodes (priority 3).
        distance: from its GPUs to all cards that it uses in their node, added up over a cascade that leaves its node,
            in steps of `STEPS` (priority 4).
        missed: GPUs that it could have in common with those before it, and has not (between cascades, first).
        hops: between nodes, that what is handed over takes from the main rank of a group before it to its own through
            the best broker; 0 where they have a GPU in common (between cascades, second).
    """

    nodes: int
    imbalance: int
    off_rail: int
    distance: int
    missed: int
    hops: int


NOTHING = Levels(0, 0, 0, 0, 0, 0)


class Priorities(NamedTuple):
    """Which of them count; the others are 0, as in Arachne's ablation (Table III)."""

    intra: bool = True
    inter: bool = True


BOTH = Priorities()
NEITHER = Priorities(intra=False, inter=False)
"""GPUs by their numbers, as without a mapper."""


def levels(
    topology: Topology,
    gpus: Sequence[int],
    before: Iterable[Sequence[int]],
    priorities: Priorities = BOTH,
) -> Levels:
    """Of a cascade on these GPUs.

    Args:
        topology: of the cluster.
        gpus: of the cascade, rising; the first is its main rank.
        before: those of the cascades that it needs the results of.
        priorities: which count.
    """
    inside = _within(topology, gpus) if priorities.intra else NOTHING[:4]
    missed = hops = 0
    if priorities.inter:
        own = set(gpus)
        for group in before:
            shared = len(own.intersection(group))
            missed += min(len(own), len(group)) - shared
            hops += 0 if shared else handoff_hops(topology, group[0], gpus[0])
    return Levels(*inside, missed, hops)


def handoff_hops(topology: Topology, giver: int, taker: int) -> int:
    """How often a tensor changes nodes between two main ranks, through the broker that is best for them."""
    size = topology.gpus_per_node
    at, to = giver // size, taker // size
    if topology.brokers is None or at in topology.brokers or to in topology.brokers:
        return int(at != to)
    return 2


def off_rail(topology: Topology, nodes: Iterable[Iterable[int]]) -> int:
    """GPUs of a group without another on their rail in each of its other nodes.

    Args:
        topology: of the cluster.
        nodes: the group's GPUs in each of its nodes, as numbers within the node.
    """
    rail = topology.rail_of_gpu
    rails = [[rail[gpu] for gpu in own] for own in nodes]
    everywhere = sum(min(own.count(name) for own in rails) for name in set(rails[0]))
    return sum(map(len, rails)) - len(rails) * everywhere


def _within(topology: Topology, gpus: Sequence[int]) -> tuple[int, int, int, int]:
    size = topology.gpus_per_node
    if gpus[0] // size == gpus[-1] // size:
        return (0, 0, 0, 0)
    nodes = list(topology.by_node(gpus).values())
    counts = [len(own) for own in nodes]
    return (
        len(nodes) - 1,
        max(counts) - min(counts),
        off_rail(topology, nodes),
        sum(topology.cumulative_distance(tuple(own)) for own in nodes),
    )
