"""Which samples of a dataset make which shard of its version with latents: pure functions of its index."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loader.dataset import Row


@dataclass(frozen=True)
class PlannedSample:
    """One sample of the new version.

    Attributes:
        row: of the source's index.
        bucket: frames, height and width it is trained at; None: it fits none and keeps no more than its words.
        views: choices of frames that are encoded; 0: its clip is carried, to be encoded on the fly.
        context: whether its caption is encoded.
        clip: whether its clip is carried.
        size: bytes it will take, about.
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
        """Names its place and what it is made of."""
        made_of = [[one.row["key"], one.row["sample_sha256"], one.views, one.clip] for one in self.samples]
        return f"{self.number:06d}-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}"

    @property
    def size(self) -> int:
        """Bytes it will take, about."""
        return sum(one.size for one in self.samples)

    def to_row(self) -> dict[str, Any]:
        """JSON values, for a runner."""
        return {"id": self.id, "number": self.number, "samples": [asdict(one) for one in self.samples]}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "PlannedShard":
        """What `to_row` gave."""
        samples = (
            PlannedSample(**one | {"bucket": one["bucket"] and tuple(one["bucket"])})
            for one in row["samples"]
        )
        return cls(row["number"], tuple(samples))


def plan_shards(samples: Sequence[PlannedSample], max_bytes: int) -> list[PlannedShard]:
    """Shards of one split and bin each, sorted by key; a new one where the next sample would pass the limit.

    Args:
        samples: in any order.
        max_bytes: of a shard, about; a larger sample gets one of its own.
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
