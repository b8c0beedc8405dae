"""Quality of a cascade's place: Arachne's priorities (section IV-C) as six numbers, most important first."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reelweave.train.cascade.placement.topology import Topology


class Levels(NamedTuple):
    """Cost of a place, compared lexicographically; lower is better.

    The paper orders the priorities but does not quantify them; these numbers are ours.

    Attributes:
        nodes: number of nodes minus one (priority 1).
        imbalance: maximum minus minimum of its GPUs per node (priority 2).
        off_rail: number of its GPUs without a peer on their rail in each of its other nodes (priority 3).
        distance: distance in `STEPS` from its GPUs to all cards that it uses in their node, summed if the
            cascade spans nodes (priority 4).
        missed: number of GPUs that it could share with its inputs' cascades, but does not (between cascades, first).
        hops: node changes of handoffs from the main ranks of its inputs through the best broker; 0 with a
            common GPU (between cascades, second).
    """

    nodes: int
    imbalance: int
    off_rail: int
    distance: int
    missed: int
    hops: int


NOTHING = Levels(0, 0, 0, 0, 0, 0)


class Priorities(NamedTuple):
    """Enabled priorities; disabled levels are 0, as in Arachne's ablation (Table III)."""

    intra: bool = True
    inter: bool = True


BOTH = Priorities()
NEITHER = Priorities(intra=False, inter=False)
"""No priorities: GPUs by number, as without a mapper."""


def levels(
    topology: Topology,
    gpus: Sequence[int],
    before: Iterable[Sequence[int]],
    priorities: Priorities = BOTH,
) -> Levels:
    """Return the levels of a cascade on these GPUs.

    Args:
        topology: cluster topology.
        gpus: GPUs of the cascade, rising; the first is its main rank.
        before: GPUs of the cascades that it takes inputs from.
        priorities: enabled priorities.
    """
    inside = _within(topology, gpus) if priorities.intra else NOTHING[:4]
    missed = hops = 0
    if priorities.inter:
        gpu_set = set(gpus)
        for group in before:
            shared = len(gpu_set.intersection(group))
            missed += min(len(gpu_set), len(group)) - shared
            hops += 0 if shared else handoff_hops(topology, group[0], gpus[0])
    return Levels(*inside, missed, hops)


def handoff_hops(topology: Topology, giver: int, taker: int) -> int:
    """Return the node changes of a tensor between two main ranks, through the best broker."""
    size = topology.gpus_per_node
    at, to = giver // size, taker // size
    if topology.brokers is None or at in topology.brokers or to in topology.brokers:
        return int(at != to)
    return 2


def off_rail(topology: Topology, nodes: Iterable[Iterable[int]]) -> int:
    """Count a group's GPUs without a peer on their rail in each of its other nodes.

    Args:
        topology: cluster topology.
        nodes: the group's GPUs in each node, as numbers within the node.
    """
    rail = topology.rail_of_gpu
    rails = [[rail[gpu] for gpu in node_gpus] for node_gpus in nodes]
    everywhere = sum(min(node_rails.count(name) for node_rails in rails) for name in set(rails[0]))
    return sum(map(len, rails)) - len(rails) * everywhere


def _within(topology: Topology, gpus: Sequence[int]) -> tuple[int, int, int, int]:
    size = topology.gpus_per_node
    if gpus[0] // size == gpus[-1] // size:
        return (0, 0, 0, 0)
    nodes = list(topology.by_node(gpus).values())
    counts = [len(node_gpus) for node_gpus in nodes]
    return (
        len(nodes) - 1,
        max(counts) - min(counts),
        off_rail(topology, nodes),
        sum(topology.cumulative_distance(tuple(node_gpus)) for node_gpus in nodes),
    )
