"""Which kept samples go into which shard, and writing one of them."""

import bisect
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from curate.config import BinConfig, ShardConfig
from curate.ledger import Ledger
from curate.records import Record, Row
from curate.run.clip_stages import read_clip, unpack_array
from loader.dataset import INDEX, Sample, ShardRecord, write_shard
from loader.dataset.schema import PLACEMENT
from loader.dataset.shard import npy_bytes

STAGE = "shard"


@dataclass(frozen=True)
class Kept:
    """A sample on its way into a shard.

    Attributes:
        record: what it is.
        embedding: packed video embedding, or None.
        text: name of the ledger's arrays that hold the text embedding and the sha256 of its .npy, or None.
        place: (shard, offset, size) of the clip in the dataset's present revision, or None.
    """

    record: Record
    embedding: Row | None = None
    text: tuple[str, str] | None = None
    place: tuple[str, int, int] | None = None

    @cached_property
    def row(self) -> Row:
        """The sample's index row without its placement: everything its bytes follow from."""
        digests = {}
        if self.text:
            digests["text.npy"] = self.text[1]
        if self.embedding:
            digests["video.npy"] = hashlib.sha256(npy_bytes(unpack_array(self.embedding))).hexdigest()
        return {**index_row(self.record), "embeddings": digests}


@dataclass(frozen=True)
class ShardPlan:
    """Samples of one shard, in order."""

    number: int
    samples: list[Kept]

    @property
    def id(self) -> str:
        """Names the shard's place and content."""
        content = json.dumps([kept.row for kept in self.samples], sort_keys=True)
        return f"{self.number:06d}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    @property
    def clip_bytes(self) -> int:
        """Of all its clips."""
        return sum(kept.record.clip_bytes for kept in self.samples)

    def to_row(self) -> Row:
        """For a runner."""
        samples = [
            {
                "record": kept.record.to_row(),
                "embedding": kept.embedding,
                "text": kept.text,
                "place": kept.place,
            }
            for kept in self.samples
        ]
        return {"id": self.id, "number": self.number, "samples": samples}


def split_of(source_sha256: str, val_share: float) -> str:
    """The split of all clips of a source: decided by its content, so that it never changes sides."""
    return "val" if int(source_sha256[:12], 16) < val_share * 16**12 else "train"


def bin_of(record: Record, config: BinConfig) -> str:
    """The group of shapes a clip belongs to, such as "aspect_1-frames_0"; "all" when nothing is grouped.

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


def plan_shards(kept: Sequence[Kept], config: ShardConfig, first_number: int = 0) -> list[ShardPlan]:
    """Shards of one split and bin each, samples sorted by key, a new shard where the next clip would pass the limit.

    Pure. A clip larger than the limit gets a shard of its own.

    Args:
        kept: samples, in any order.
        config: the limit.
        first_number: of the first shard.
    """
    groups: dict[tuple[str, str], list[Kept]] = defaultdict(list)
    for sample in sorted(kept, key=lambda sample: sample.record.key or ""):
        groups[sample.record.split, sample.record.bin].append(sample)
    limit = config.max_shard_mb * 1e6
    plans: list[ShardPlan] = []
    for _, members in sorted(groups.items()):
        filled = limit + 1
        for sample in members:
            if filled + sample.record.clip_bytes > limit:
                plans.append(ShardPlan(first_number + len(plans), []))
                filled = 0
            plans[-1].samples.append(sample)
            filled += sample.record.clip_bytes
    return plans


def untouched(shards: Sequence[ShardRecord], wanted: Sequence[Kept]) -> list[ShardRecord]:
    """Shards of the present revision that may stay as they are: all their samples are wanted, unchanged."""
    now = {sample.record.key: sample.row for sample in wanted}

    def stays(row: Row) -> bool:
        return now.get(row["key"]) == {name: value for name, value in row.items() if name not in PLACEMENT}

    return [shard for shard in shards if shard.rows and all(stays(row) for row in shard.rows)]


def written_shards(ledger: Ledger, stage: str, fingerprint: str) -> dict[str, Row]:
    """Return what a stage has closed, of those shards that are still there.

    A run with other settings that finished in between has removed what it did not need.
    """
    sizes = {item.path: item.size for item in ledger.storage.list("shards/")}
    closed = ledger.closed(stage, fingerprint)
    return {name: row for name, row in closed.items() if sizes.get(row["path"]) == row["size"]}


@dataclass(frozen=True)
class WriteShard:
    """Shard plan row -> row that names the written shard; the clips come one by one."""

    ledger: Ledger
    fingerprint: str

    def __call__(self, rows: list[Row]) -> list[Row]:
        """Writes each shard and closes it in the ledger."""
        return [self._write(row) for row in rows]

    def _write(self, plan: Row) -> Row:
        samples = (self._sample(row) for row in plan["samples"])
        written = write_shard(self.ledger.storage, plan["number"], samples)
        entry = {"path": written.path, "size": written.size, "sha256": written.sha256, "rows": written.rows}
        self.ledger.close(STAGE, self.fingerprint, plan["id"], entry)
        return {"id": plan["id"]}

    def _sample(self, row: Row) -> Sample:
        embeddings = {}
        if row["text"]:
            embeddings["text.npy"] = self.ledger.read_arrays(row["text"][0])["text"]
        if row["embedding"]:
            embeddings["video.npy"] = unpack_array(row["embedding"])
        return Sample(index_row(Record.from_row(row["record"])), read_clip(self.ledger, row), embeddings)


def index_row(record: Record) -> Row:
    """The sample's index row, without the placement that writing decides."""
    row = record.to_row()
    return {name: row[name] for name in INDEX.names if name not in (*PLACEMENT, "embeddings")}
