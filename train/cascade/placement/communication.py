"""What a place costs in seconds: the exchanges within cascades, and what is handed over between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loader.base.arrays import Floats
from train.cascade.costs.cost_model import CostModel, Links, Samples
from train.cascade.placement.levels import handoff_hops, off_rail
from train.cascade.placement.mapper import needs
from train.cascade.placement.topology import Topology
from train.cascade.problem import Module
from train.cascade.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes of an iteration's samples.

    Attributes:
        exchanged_SM: that a cascade's GPUs hold together of all that they exchange; of k GPUs each sends the parts of
            the others from its own k-th of it. Float64 [S, M].
        result_SM: that a cascade hands over to the sample's DiT, float64 [S, M].
    """

    exchanged_SM: Floats
    result_SM: Floats

    @classmethod
    def of(
        cls, costs: CostModel, samples: Samples, latent_bytes: float = 128.0, text_bytes: float = 2.0**21
    ) -> "Traffic":
        """Of these samples: Ulysses in the DiT, nothing within the others.

        Args:
            costs: the model's.
            samples: of the iteration.
            latent_bytes: of a token's latents; 16 channels of 2 x 2 latent pixels in bfloat16.
            text_bytes: of a caption's embeddings; 256 tokens of 4,096 channels in bfloat16.
        """
        shape = (len(samples.length), len(Module))
        exchanged_SM, result_SM = np.zeros(shape), np.zeros(shape)
        tokens_S = (samples.batch * samples.length).astype(float)
        exchanged_SM[:, Module.DIT] = tokens_S * costs.dit.exchanged_bytes
        result_SM[:, Module.VAE] = tokens_S * latent_bytes
        result_SM[:, Module.TEXT] = samples.batch * text_bytes
        return cls(exchanged_SM, result_SM)


class Handoff(NamedTuple):
    """What one cascade gives to another.

    Attributes:
        giver: number of the run.
        taker: number of the run that needs it.
        sent_bytes: that leave a GPU; 0 where the taker's GPUs are the giver's.
        seconds: from the end of the one until the other can start.
        disjoint: they have no GPU in common, so that it goes through hosts' memory.
    """

    giver: int
    taker: int
    sent_bytes: float
    seconds: float
    disjoint: bool


class Communication(NamedTuple):
    """What the places of a schedule cost.

    Attributes:
        lost_R: seconds that each run takes above what the planner counted with, float64 [R]; below 0 where it lies
            better than that.
        handoffs: between runs.
    """

    lost_R: Floats
    handoffs: tuple[Handoff, ...]

    @property
    def disjoint_bytes(self) -> float:
        """That go through hosts' memory."""
        return sum(one.sent_bytes for one in self.handoffs if one.disjoint)


def communication(schedule: Schedule, topology: Topology, traffic: Traffic, assumed: Links) -> Communication:
    """Of a placed schedule.

    Args:
        schedule: placed.
        topology: of the cluster.
        traffic: of its samples.
        assumed: links that the schedule's times were counted with.
    """
    lost_R = np.zeros(len(schedule.runs))
    for number, run in enumerate(schedule.runs):
        size = float(traffic.exchanged_SM[run.cascade])
        if size and len(run.gpus) > 1:
            degree = np.array([len(run.gpus)])
            planned_s = size * (degree - 1) / degree**2 / assumed.bytes_per_s(degree)
            lost_R[number] = exchange_s(topology, run.gpus, size) - float(planned_s[0])
    handoffs = [
        handoff(topology, schedule, giver, taker, float(traffic.result_SM[schedule.runs[giver].cascade]))
        for taker, givers in enumerate(needs(schedule.runs))
        for giver in givers
    ]
    return Communication(lost_R, tuple(handoffs))


def exchange_s(topology: Topology, gpus: Sequence[int], size: float) -> float:
    """Seconds of all-to-all exchanges of so many bytes, held by a group together.

    Each of k GPUs sends a k-th of its k-th to every other: to those of its node over NVLink (or PCIe) and to the rest
    through its network card, both at once; the slowest GPU or card counts. A card is shared by the GPUs that are
    nearest to it, at the rate that the farthest of them reaches. What has no peer on its rail goes through the spine.
    Other groups are taken to use other cards.
    """
    degree = len(gpus)
    part = size / degree**2
    nodes = topology.by_node(gpus)
    slowest_s = max((len(own) - 1) * part / topology.node_bytes_per_s for own in nodes.values())
    if len(nodes) == 1:
        return slowest_s
    off = off_rail(topology, nodes.values()) / degree
    slowed = 1 - off + off / topology.spine_share
    for own in nodes.values():
        sent = (degree - len(own)) * part
        for card in {topology.card_of_gpu[gpu] for gpu in own}:
            sharing = [gpu for gpu in own if topology.card_of_gpu[gpu] == card]
            reached = min(topology.reached[topology.distances[gpu][card]] for gpu in sharing)
            rate = topology.card_bytes_per_s * reached
            slowest_s = max(slowest_s, len(sharing) * sent * slowed / rate)
    return slowest_s


def handoff(topology: Topology, schedule: Schedule, giver: int, taker: int, size: float) -> Handoff:
    """In place where groups share GPUs, from which new peers get it; else through hosts' memory and a broker."""
    own, to = schedule.runs[giver].gpus, schedule.runs[taker].gpus
    shared, new = set(own).intersection(to), set(to).difference(own)
    if not new:
        return Handoff(giver, taker, 0.0, 0.0, False)
    if not shared:
        legs = 1 + handoff_hops(topology, own[0], to[0])
        return Handoff(giver, taker, size, legs * size / topology.host_bytes_per_s, True)
    near = set(topology.by_node(shared)).issuperset(topology.by_node(new))
    rate = topology.node_bytes_per_s if near else min(topology.node_bytes_per_s, topology.card_bytes_per_s)
    return Handoff(giver, taker, size, size / rate, False)
