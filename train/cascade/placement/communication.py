"""Communication time of a placed schedule: exchanges within cascades, and handoffs between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.train.cascade.costs.cost_model import CostModel, Links, SampleShapes
from reelweave.train.cascade.placement.levels import handoff_hops, off_rail
from reelweave.train.cascade.placement.mapper import needs
from reelweave.train.cascade.placement.topology import Topology
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes that an iteration's samples exchange.

    Attributes:
        exchanged_SM: bytes that a cascade's GPUs exchange, held by all together; each of k GPUs sends the
            others' parts of its k-th share. Float64 [S, M].
        result_SM: bytes that a cascade hands over to the sample's DiT, float64 [S, M].
    """

    exchanged_SM: Floats
    result_SM: Floats

    @classmethod
    def of(
        cls, costs: CostModel, samples: SampleShapes, latent_bytes: float = 128.0, text_bytes: float = 2.0**21
    ) -> "Traffic":
        """Compute the traffic of samples: Ulysses in the DiT, no exchange within other modules.

        Args:
            costs: cost model.
            samples: microbatches of the iteration.
            latent_bytes: bytes of a token's latents; 16 channels of 2 x 2 latent pixels in bfloat16.
            text_bytes: bytes of a caption's embeddings; 256 tokens of 4,096 channels in bfloat16.
        """
        shape = (len(samples.length), len(Module))
        exchanged_SM, result_SM = np.zeros(shape), np.zeros(shape)
        tokens_S = (samples.batch * samples.length).astype(float)
        exchanged_SM[:, Module.DIT] = tokens_S * costs.dit.exchanged_bytes
        result_SM[:, Module.VAE] = tokens_S * latent_bytes
        result_SM[:, Module.TEXT] = samples.batch * text_bytes
        return cls(exchanged_SM, result_SM)


class HandoffCost(NamedTuple):
    """Transfer from one cascade to another.

    Attributes:
        giver: index of the producing run.
        taker: index of the consuming run.
        sent_bytes: bytes that leave a GPU; 0 if both runs use the same GPUs.
        seconds: delay from the end of the producer to the earliest start of the consumer.
        disjoint: True if the runs share no GPU, so that the transfer goes through host memory.
    """

    giver: int
    taker: int
    sent_bytes: float
    seconds: float
    disjoint: bool


class Communication(NamedTuple):
    """Communication cost of a placed schedule.

    Attributes:
        lost_R: extra seconds of each run relative to the planner's assumption, float64 [R]; negative for a
            better place.
        handoffs: transfers between runs.
    """

    lost_R: Floats
    handoffs: tuple[HandoffCost, ...]

    @property
    def disjoint_bytes(self) -> float:
        """Bytes that go through host memory."""
        return sum(transfer.sent_bytes for transfer in self.handoffs if transfer.disjoint)


def communication(schedule: Schedule, topology: Topology, traffic: Traffic, assumed: Links) -> Communication:
    """Return the communication cost of a placed schedule.

    Args:
        schedule: placed schedule.
        topology: cluster topology.
        traffic: bytes of its samples.
        assumed: bandwidths that the schedule's times assume.
    """
    lost_R = np.zeros(len(schedule.runs))
    for run_index, run in enumerate(schedule.runs):
        size = float(traffic.exchanged_SM[run.cascade])
        if size and len(run.gpus) > 1:
            degree = np.array([len(run.gpus)])
            planned_s = size * (degree - 1) / degree**2 / assumed.bytes_per_s(degree)
            lost_R[run_index] = exchange_s(topology, run.gpus, size) - float(planned_s[0])
    handoffs = [
        handoff(topology, schedule, giver, taker, float(traffic.result_SM[schedule.runs[giver].cascade]))
        for taker, givers in enumerate(needs(schedule.runs))
        for giver in givers
    ]
    return Communication(lost_R, tuple(handoffs))


def exchange_s(topology: Topology, gpus: Sequence[int], size: float) -> float:
    """Return seconds of all-to-all exchanges of ``size`` bytes, held by a group together.

    Each of k GPUs sends a k-th of its share to every other GPU. Within the node this goes over NVLink (or
    PCIe), beyond through its network card, both concurrently. The slowest GPU or card counts. GPUs share the
    card nearest to them, at the rate that the farthest of them reaches. Traffic without a peer on its rail
    crosses the spine. Other groups are assumed to use other cards.
    """
    degree = len(gpus)
    part = size / degree**2
    nodes = topology.by_node(gpus)
    slowest_s = max((len(node_gpus) - 1) * part / topology.node_bytes_per_s for node_gpus in nodes.values())
    if len(nodes) == 1:
        return slowest_s
    off = off_rail(topology, nodes.values()) / degree
    slowed = 1 - off + off / topology.spine_share
    for node_gpus in nodes.values():
        sent = (degree - len(node_gpus)) * part
        for card in {topology.card_of_gpu[gpu] for gpu in node_gpus}:
            sharing = [gpu for gpu in node_gpus if topology.card_of_gpu[gpu] == card]
            reached = min(topology.reached[topology.distances[gpu][card]] for gpu in sharing)
            rate = topology.card_bytes_per_s * reached
            slowest_s = max(slowest_s, len(sharing) * sent * slowed / rate)
    return slowest_s


def handoff(topology: Topology, schedule: Schedule, giver: int, taker: int, size: float) -> HandoffCost:
    """Return a transfer: in place or within overlapping groups, else through host memory and a broker."""
    giver_gpus, to = schedule.runs[giver].gpus, schedule.runs[taker].gpus
    shared, new = set(giver_gpus).intersection(to), set(to).difference(giver_gpus)
    if not new:
        return HandoffCost(giver, taker, 0.0, 0.0, False)
    if not shared:
        legs = 1 + handoff_hops(topology, giver_gpus[0], to[0])
        return HandoffCost(giver, taker, size, legs * size / topology.host_bytes_per_s, True)
    near = set(topology.by_node(shared)).issuperset(topology.by_node(new))
    rate = topology.node_bytes_per_s if near else min(topology.node_bytes_per_s, topology.card_bytes_per_s)
    return HandoffCost(giver, taker, size, size / rate, False)
