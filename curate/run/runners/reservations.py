"""Resources that one worker of each stage reserves, lowered until all stages find room at once: a pure function.

Stages of a pipeline run side by side, and workers with a model keep their reservation until the end. Where one
worker of every stage does not fit, the rest would wait for ever. Reservations are numbers for the scheduler.
Workers may share a processor or a GPU, as they do when one process runs all stages in turn.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reelweave.loader.errors import UsageError

_GRAIN = 10_000  # Ray counts resources in parts of this


@dataclass(frozen=True)
class Resources:
    """Resources of a node, or reserved by one worker.

    Attributes:
        cpus: Processors.
        gpus: GPUs.
        memory_mb: Megabytes of RAM.
    """

    cpus: float
    gpus: float = 0.0
    memory_mb: float = 0.0


def fit_reservations(requested: Mapping[str, Resources], nodes: Sequence[Resources]) -> dict[str, Resources]:
    """Return reservations with which the nodes hold one worker of each stage at the same time.

    Nothing changes where they fit. Otherwise a worker reserves no more than the largest node has. Processors,
    GPUs and memory are divided by the smallest whole numbers that make room.

    Args:
        requested: Reservation of a worker, by stage.
        nodes: Nodes of the cluster; where none has a processor nothing is known, and nothing changes.

    Raises:
        UsageError: a stage wants more whole GPUs than a node has, or than are left beside the other stages.
    """
    nodes = [node for node in nodes if node.cpus > 0]
    if not nodes:
        return dict(requested)
    within = {name: _clamp_share(name, share, nodes) for name, share in requested.items()}
    parts = range(1, len(requested) + 1)
    for divisors in sorted(itertools.product(parts, repeat=3), key=lambda parts: (sum(parts), parts)):
        shares = {name: _divide_share(share, *divisors) for name, share in within.items()}
        if _placed(list(shares.values()), nodes):
            return shares
    raise UsageError(
        f"the stages {', '.join(requested)} want {sum(share.gpus for share in requested.values()):g} GPUs for one"
        f" worker each, and there are {sum(node.gpus for node in nodes):g}; lower their shares under run, such as"
        " run.caption_gpus"
    )


def worker_capacity(share: Resources, nodes: Sequence[Resources]) -> int:
    """Return how many workers of a stage all nodes together have room for, if no other stage had any."""
    return sum(_places_on(node, share) for node in nodes)


def _places_on(node: Resources, share: Resources) -> int:
    slack = 1 + 1e-9
    counts = [
        math.floor(has * slack / wants)
        for has, wants in ((node.cpus, share.cpus), (node.memory_mb, share.memory_mb))
        if wants > 0
    ]
    if 0 < share.gpus <= 1:
        counts.append(int(node.gpus) * math.floor(slack / share.gpus))
    elif share.gpus:
        counts.append(math.floor(node.gpus / share.gpus))
    return min(counts, default=0)


def _clamp_share(name: str, share: Resources, nodes: Sequence[Resources]) -> Resources:
    """Return the share, limited to the resources of the best node for it."""
    if share.gpus > max(node.gpus for node in nodes):
        raise UsageError(
            f"a worker of the stage {name} wants {share.gpus:g} GPUs, and no node has more than"
            f" {max(node.gpus for node in nodes):g}; lower its share under run, such as run.caption_gpus"
        )
    home = max(
        (node for node in nodes if node.gpus >= share.gpus), key=lambda node: (node.cpus, node.memory_mb)
    )
    return Resources(min(share.cpus, home.cpus), share.gpus, min(share.memory_mb, home.memory_mb))


def _divide_share(share: Resources, cpu_parts: int, gpu_parts: int, memory_parts: int) -> Resources:
    return Resources(
        _floor_to_step(share.cpus / cpu_parts),
        share.gpus if share.gpus > 1 else _floor_to_step(share.gpus / gpu_parts),
        share.memory_mb / memory_parts,
    )


def _floor_to_step(value: float) -> float:
    """Return the value in the steps that Ray counts, rounded down so that parts never exceed the whole."""
    return math.floor(value * _GRAIN + 1e-6) / _GRAIN


def _placed(shares: Sequence[Resources], nodes: Sequence[Resources]) -> bool:
    """Return whether first fit, the largest share first, finds a place for each."""
    free = [_Free(node) for node in nodes]
    ordered = sorted(shares, key=lambda share: (share.gpus, share.cpus, share.memory_mb), reverse=True)
    return all(any(node.take(share) for node in free) for share in ordered)


class _Free:
    """Free resources of a node."""

    def __init__(self, node: Resources) -> None:
        self._cpus, self._memory_mb = node.cpus, node.memory_mb
        self._gpus = [1.0] * int(node.gpus)

    def take(self, share: Resources) -> bool:
        """Take a share if there is room, and return whether there was. A fraction of a GPU lies on one device."""
        slack = 1e-9
        devices = [
            device
            for device, free_share in enumerate(self._gpus)
            if free_share + slack >= min(share.gpus, 1.0)
        ]
        count = math.ceil(share.gpus)
        if (
            share.cpus > self._cpus + slack
            or share.memory_mb > self._memory_mb + slack
            or len(devices) < count
        ):
            return False
        self._cpus -= share.cpus
        self._memory_mb -= share.memory_mb
        for device in sorted(devices, key=lambda device: self._gpus[device])[:count]:
            self._gpus[device] -= min(share.gpus, 1.0)
        return True
