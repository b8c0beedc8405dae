"""Assignment of samples to shards of a version with latents: pure functions of the index."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from loader.dataset import Row


@dataclass(frozen=True)
class PlannedSample:
    """One sample of the new version.

    Attributes:
        row: row of the source's index.
        bucket: frames, height and width in training; None: it fits no bucket and keeps its metadata alone.
        views: number of encoded frame selections; 0: the clip is stored and encoded on the fly.
        context: True if its caption is encoded.
        clip: True if its clip is stored.
        size: approximate bytes.
    """

    row: Row
    bucket: tuple[int, int, int] | None
    views: int
    context: bool
    clip: bool
    size: int


@dataclass(frozen=True)
class PlannedShard:
    """Samples of one shard, in order."""

    number: int
    samples: tuple[PlannedSample, ...]

    @property
    def id(self) -> str:
        """Identifier from its number and contents."""
        made_of = [[one.row["key"], one.row["sample_sha256"], one.views, one.clip] for one in self.samples]
        return f"{self.number:06d}-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}"

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum(one.size for one in self.samples)


def plan_shards(samples: Sequence[PlannedSample], max_bytes: int) -> list[PlannedShard]:
    """Assign samples to shards of one split and bin each, sorted by key, up to a size limit.

    Args:
        samples: samples in any order.
        max_bytes: approximate limit of a shard; a larger sample gets its own.
    """
    groups: dict[tuple[str, str], list[PlannedSample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda one: str(one.row["key"])):
        groups[sample.row["split"], sample.row["bin"]].append(sample)
    shards: list[list[PlannedSample]] = []
    for _, members in sorted(groups.items()):
        filled = max_bytes + 1
        for sample in members:
            if filled + sample.size > max_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(sample)
            filled += sample.size
    return [PlannedShard(number, tuple(shard)) for number, shard in enumerate(shards)]
