"""Shards of kept samples: planning all, writing one."""

import bisect
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from curate.config import BinConfig, ShardConfig
from curate.ledger import Ledger
from curate.records import Record, TextEmbedding, from_json
from curate.run.clip_stages import clip_bytes
from curate.source_pass.tasks import ClipPlace
from loader.dataset import INDEX, Row, Sample, ShardRecord, write_shard
from loader.dataset.schema import PLACEMENT
from loader.dataset.shard import npy_bytes
from loader.dataset.tables.shard_rows import TableRows, as_table

STAGE = "shard"


@dataclass(frozen=True)
class KeptSample:
    """A sample on its way into a shard.

    Attributes:
        record: Record of the clip.
        embedding: Video embedding, float [D], or None.
        text: Text embedding, or None.
        place: Place of the clip in the dataset's present revision, or None.
    """

    record: Record
    embedding: NDArray[Any] | None = None
    text: TextEmbedding | None = None
    place: ClipPlace | None = None

    @property
    def row(self) -> Row:
        """The sample's index row without its placement: all that its bytes follow from."""
        digests = {}
        if self.text:
            digests["text.npy"] = self.text.sha256
        if self.embedding is not None:
            digests["video.npy"] = hashlib.sha256(npy_bytes(self.embedding)).hexdigest()
        return {**index_row(self.record), "embeddings": digests}


@dataclass(frozen=True)
class ShardPlan:
    """Samples of one shard, in order.

    Attributes:
        number: Place of the shard among all shards.
        id: Digest of the number and the content.
        samples: The samples; none once the shard is written.
    """

    number: int
    id: str
    samples: tuple[KeptSample, ...]

    @staticmethod
    def of(number: int, samples: Sequence[KeptSample]) -> "ShardPlan":
        """Plan a shard with samples."""
        content = json.dumps([kept.row for kept in samples], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        return ShardPlan(number, f"{number:06d}-{digest[:16]}", tuple(samples))

    @property
    def clip_bytes(self) -> int:
        """Size of all its clips."""
        return sum(kept.record.clip_bytes for kept in self.samples)


def split_of(source_sha256: str, val_share: float) -> str:
    """Return the split of all clips of a source, decided by its content, so that it never changes sides."""
    return "val" if int(source_sha256[:12], 16) < val_share * 16**12 else "train"


def bin_of(record: Record, config: BinConfig) -> str:
    """Return the group of shapes of a clip, such as "aspect_1-frames_0"; "all" when nothing is grouped.

    A number counts the edges at or below the value, so that every clip has a group.
    """
    values = {
        "aspect": record.width / record.height,
        "short_side_px": min(record.width, record.height),
        "frames": record.frames,
    }
    edges = {name: sorted(getattr(config, name)) for name in values}
    groups = [f"{name}_{bisect.bisect_right(edges[name], values[name])}" for name in values if edges[name]]
    return "-".join(groups) or "all"


def plan_shards(kept: Sequence[KeptSample], config: ShardConfig, first_number: int = 0) -> list[ShardPlan]:
    """Plan shards of one split and bin each, samples sorted by key, a new shard where the next clip exceeds the limit.

    A pure function. A clip larger than the limit gets a shard of its own.

    Args:
        kept: Samples, in any order.
        config: The limit.
        first_number: Number of the first shard.
    """
    groups: dict[tuple[str, str], list[KeptSample]] = defaultdict(list)
    for sample in sorted(kept, key=lambda sample: sample.record.key or ""):
        groups[sample.record.split, sample.record.bin].append(sample)
    limit = config.max_shard_mb * 1e6
    shards: list[list[KeptSample]] = []
    for _, members in sorted(groups.items()):
        filled = limit + 1
        for sample in members:
            if filled + sample.record.clip_bytes > limit:
                shards.append([])
                filled = 0
            shards[-1].append(sample)
            filled += sample.record.clip_bytes
    return [ShardPlan.of(number, samples) for number, samples in enumerate(shards, first_number)]


def untouched(shards: Sequence[ShardRecord], wanted: Sequence[KeptSample]) -> list[ShardRecord]:
    """Return the shards of the present revision that may stay as they are: all their samples are wanted, unchanged."""
    present = {row["key"] for shard in shards for row in shard.rows}
    now = {sample.record.key: sample.row for sample in wanted if sample.record.key in present}

    def stays(row: Row) -> bool:
        return now.get(row["key"]) == {name: value for name, value in row.items() if name not in PLACEMENT}

    return [shard for shard in shards if shard.rows and all(stays(row) for row in shard.rows)]


Written = TypeVar("Written", bound=ShardRecord)


def written_shards(ledger: Ledger, stage: str, fingerprint: str, kind: type[Written]) -> dict[str, Written]:
    """Return the shards that a stage finished and that are still there, by identity of their plan.

    A run with other settings that finished in between has removed the shards it did not need.

    Args:
        ledger: The ledger.
        stage: Name of the stage.
        fingerprint: Digest of its configuration.
        kind: Type of its records.
    """
    sizes = {item.path: item.size for item in ledger.storage.list("shards/")}
    closed = ledger.closed(stage, fingerprint, lambda values: _tabular(from_json(kind, values)))
    return {name: shard for name, shard in closed.items() if sizes.get(shard.path) == shard.size}


def _tabular(shard: Written) -> Written:
    """Return the shard with its rows as a table."""
    return replace(shard, rows=TableRows(as_table(shard.rows)))


@dataclass(frozen=True)
class WriteShard:
    """Function that writes planned shards and returns the plans without their samples; clips are read one by one."""

    ledger: Ledger
    fingerprint: str

    def __call__(self, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
        """Write each shard and record it in the ledger."""
        return [self._write(plan) for plan in plans]

    def _write(self, plan: ShardPlan) -> ShardPlan:
        written = write_shard(self.ledger.storage, plan.number, map(self._sample, plan.samples))
        self.ledger.close(STAGE, self.fingerprint, plan.id, written)
        return replace(plan, samples=())

    def _sample(self, kept: KeptSample) -> Sample:
        embeddings = {}
        if kept.text:
            embeddings["text.npy"] = self.ledger.read_arrays(kept.text.arrays)["text"]
        if kept.embedding is not None:
            embeddings["video.npy"] = kept.embedding
        return Sample(index_row(kept.record), clip_bytes(self.ledger, kept.record, kept.place), embeddings)


def index_row(record: Record) -> Row:
    """Return the sample's index row, without the placement that writing decides."""
    return record.columns(name for name in INDEX.names if name not in (*PLACEMENT, "embeddings"))
