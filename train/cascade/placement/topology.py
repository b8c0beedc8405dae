"""Cluster topology: nodes, network cards, rails, and distances between GPUs and cards."""

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.train.cascade.costs.cost_model import Links

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
"""Connection between a GPU and a card, in the terms of ``nvidia-smi topo -m``. One PCIe switch, several of
them, the host's PCIe root, roots within one NUMA node, or the link between processors.
"""

STEPS: dict[Distance, int] = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
"""Distances as numbers to add up."""

_REACHED: dict[Distance, float] = {"PIX": 1.0, "PXB": 1.0, "PHB": 0.8, "NODE": 0.7, "SYS": 0.4}


class Topology(Settings):
    """Cluster of identical nodes; GPU ``g`` is GPU ``g % gpus_per_node`` of node ``g // gpus_per_node``."""

    nodes: int = Field(1, ge=1, description="number of nodes")
    gpus_per_node: int = Field(8, ge=1, description="GPUs of a node")
    distances: tuple[tuple[Distance, ...], ...] = Field(
        (),
        description="one row per GPU of a node, one column per network card; empty for a single node. Values are"
        " PIX, PXB, PHB, NODE or SYS, as in `nvidia-smi topo -m`",
    )
    rails: tuple[int, ...] | None = Field(
        None, description="leaf switch of each card of a node; null: card i of every node is on switch i"
    )
    node_bytes_per_s: float = Field(
        300e9, gt=0, description="bandwidth of a GPU within its node, over NVLink or PCIe"
    )
    card_bytes_per_s: float = Field(45e9, gt=0, description="bandwidth of a network card")
    spine_share: float = Field(
        0.6, gt=0, le=1, description="share of a card's bandwidth available between different leaf switches"
    )
    reached: dict[Distance, float] = Field(
        _REACHED, description="share of a card's bandwidth that a GPU at each distance reaches"
    )
    host_bytes_per_s: float = Field(
        2.5e9, gt=0, description="bandwidth of a handoff through host memory: copy out, Gloo, copy in"
    )
    brokers: tuple[int, ...] | None = Field(
        None, description="nodes with a rank that relays tensors between groups; null: all"
    )

    @model_validator(mode="after")
    def _whole(self) -> "Topology":
        if self.nodes > 1 and not self.distances:
            raise ValueError("several nodes need distances, a row for each GPU and a column for each card")
        if self.distances and len(self.distances) != self.gpus_per_node:
            raise ValueError(f"distances has {len(self.distances)} rows for {self.gpus_per_node} GPUs")
        cards = len(self.distances[0]) if self.distances else 0
        if any(len(row) != cards for row in self.distances) or (self.distances and not cards):
            raise ValueError("every row of distances needs as many columns as a node has network cards")
        if self.rails is not None and len(self.rails) != cards:
            raise ValueError(f"rails has {len(self.rails)} entries for {cards} network cards")
        if missing := STEPS.keys() - self.reached.keys():
            raise ValueError(f"reached lacks {', '.join(sorted(missing))}")
        if not all(0 < share <= 1 for share in self.reached.values()):
            raise ValueError("each share in reached lies above 0 and at most at 1")
        if self.brokers is not None and (
            not self.brokers or not all(0 <= node < self.nodes for node in self.brokers)
        ):
            raise ValueError(f"brokers needs one node at least, each from 0 to {self.nodes - 1}")
        return self

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def holding(self, gpus: int) -> "Topology":
        """Return the topology with as many nodes as so many GPUs need.

        Raises:
            UsageError: several nodes are needed, and the topology has no network.
        """
        nodes = -(-gpus // self.gpus_per_node)
        if nodes > 1 and not self.distances:
            raise UsageError(
                f"{gpus} GPUs take {nodes} nodes of {self.gpus_per_node}, and the topology has no network:"
                " give it distances, or take another"
            )
        return Topology.model_validate({**self.model_dump(), "nodes": nodes})

    @cached_property
    def card_of_gpu(self) -> tuple[int, ...]:
        """Network card of each GPU of a node: the nearest, then the one with fewest GPUs so far."""
        chosen: list[int] = []
        for row in self.distances:
            chosen.append(min(range(len(row)), key=lambda card: (STEPS[row[card]], chosen.count(card), card)))
        return tuple(chosen)

    @cached_property
    def rail_of_gpu(self) -> tuple[int, ...]:
        """Leaf switch of each GPU's card."""
        return tuple(card if self.rails is None else self.rails[card] for card in self.card_of_gpu)

    @cached_property
    def links(self) -> Links:
        """Bandwidths for the planner, which only distinguishes groups within and across nodes."""
        cards = len(self.distances[0]) if self.distances else self.gpus_per_node
        return Links(
            gpus_per_node=self.gpus_per_node,
            node_bytes_per_s=self.node_bytes_per_s,
            network_bytes_per_s=self.card_bytes_per_s * min(1.0, cards / self.gpus_per_node),
        )

    @cached_property
    def _cumulative(self) -> dict[tuple[int, ...], int]:
        return {}

    def cumulative_distance(self, gpus: tuple[int, ...]) -> int:
        """Return the distance in `STEPS` from each of some GPUs of a node to the cards of all of them."""
        if gpus not in self._cumulative:
            cards = [self.card_of_gpu[gpu] for gpu in gpus]
            self._cumulative[gpus] = sum(STEPS[self.distances[gpu][card]] for gpu in gpus for card in cards)
        return self._cumulative[gpus]

    def by_node(self, gpus: Iterable[int]) -> dict[int, list[int]]:
        """Group GPUs by node, as numbers within the node, in the given order."""
        gpus_by_node: dict[int, list[int]] = {}
        size = self.gpus_per_node
        for gpu in gpus:
            node = gpu // size
            if node in gpus_by_node:
                gpus_by_node[node].append(gpu - node * size)
            else:
                gpus_by_node[node] = [gpu - node * size]
        return gpus_by_node


def _card_each(gpus: int) -> tuple[tuple[Distance, ...], ...]:
    """Return distances with one card beside every GPU and two processors per node."""

    def distance(gpu: int, card: int) -> Distance:
        if gpu == card:
            return "PIX"
        return "NODE" if gpu // (gpus // 2) == card // (gpus // 2) else "SYS"

    return tuple(tuple(distance(gpu, card) for card in range(gpus)) for gpu in range(gpus))


_NEAR_FIRST: tuple[Distance, ...] = ("PXB", "SYS")
_FAR_FIRST: tuple[Distance, ...] = ("NODE", "SYS")

PRESETS: dict[str, Topology] = {
    "dgx-h100": Topology(distances=_card_each(8)),
    "dgx-h200": Topology(distances=_card_each(8)),
    "pcie": Topology(
        distances=(
            *(_NEAR_FIRST, _NEAR_FIRST, _FAR_FIRST, _FAR_FIRST),
            *(_NEAR_FIRST[::-1], _NEAR_FIRST[::-1], _FAR_FIRST[::-1], _FAR_FIRST[::-1]),
        ),
        node_bytes_per_s=22e9,
        card_bytes_per_s=22e9,
    ),
    "single": Topology(),
}
"""Presets with one node each; `Topology.holding` adds nodes. ``dgx-h100``, ``dgx-h200``: NVLink, 8 cards of
400 Gbit/s in 8 rails. ``pcie``: 8 GPUs without NVLink, 4 at each processor, which has one card of 200 Gbit/s.
``single``: one node with NVLink and no network. Bandwidths are achieved rates, not nominal ones;
``spine_share``, ``reached`` and ``host_bytes_per_s`` are unmeasured assumptions."""
