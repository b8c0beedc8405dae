"""Shards of kept samples: planning all, writing one."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.config import ShardConfig
from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import from_json
from reelweave.curate.run.stages.clip_stages import clip_bytes
from reelweave.curate.run.tables.columns import column, copy_rows
from reelweave.curate.run.tables.samples import embedding_digests, from_ipc, index_columns, to_ipc, vectors_of
from reelweave.curate.source_pass.tasks import ClipPlace
from reelweave.loader.dataset import Dataset, Sample, ShardRecord, write_shard
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.dataset.tables.shard_rows import TableRows, as_table, read_back
from reelweave.loader.errors import RunError

STAGE = "shard"


@dataclass(frozen=True)
class ShardPlan:
    """Samples of one shard, in order.

    Attributes:
        number: Place of the shard among all shards.
        id: Digest of the number and the content.
        samples: The samples, see `reelweave.curate.run.tables.samples`; None once the shard is written.
    """

    number: int
    id: str
    samples: pa.Table | None

    @staticmethod
    def of(index: int, samples: pa.Table) -> "ShardPlan":
        """Plan a shard with samples."""
        # Neither where a clip lies now, nor a score that only others have, changes what the shard will hold.
        unmeasured = [
            name for name in samples.column_names if samples.column(name).null_count == len(samples)
        ]
        content = samples.drop_columns({*unmeasured, "place.shard", "place.offset", "place.size"})
        digest = hashlib.sha256(to_ipc(copy_rows(content))).hexdigest()
        return ShardPlan(index, f"{index:06d}-{digest[:16]}", samples)

    @property
    def clip_bytes(self) -> int:
        return (
            0 if self.samples is None else int(pc.sum(self.samples.column("clip_bytes"), min_count=0).as_py())
        )

    def __getstate__(self) -> dict[str, object]:
        # A pickled slice would carry the whole table.
        return {**vars(self), "samples": None if self.samples is None else to_ipc(self.samples)}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        data = state["samples"]
        vars(self).update(state, samples=from_ipc(data) if isinstance(data, bytes) else None)


@dataclass(frozen=True)
class ShardOrder:
    """TextPlaces of samples in shards.

    Attributes:
        places: Place of each sample among all, in shards one after the other.
        ends: First place of each shard, and the number of samples.
        clip_bytes: Size of the clips of each shard.
    """

    places: NDArray[np.int64]
    ends: NDArray[np.int64]
    clip_bytes: NDArray[np.int64]


def shard_order(
    groups: NDArray[np.int64], keys: Sequence[NDArray[Any]], sizes: NDArray[np.int64], config: ShardConfig
) -> ShardOrder:
    """Place samples in shards of one group each, sorted by key, a new shard where the next clip exceeds the limit.

    A pure function. A clip larger than the limit gets a shard of its own.

    Args:
        groups: Number of the group of each sample.
        keys: Numbers by which samples are sorted within a group, the foremost first.
        sizes: Bytes of the clip of each.
        config: The limit.
    """
    order = np.lexsort((*keys[::-1], groups))
    ends = np.cumsum(sizes[order])
    limit = int(config.max_shard_mb * 1e6)  # a decimal would make decimals of all
    starts: list[int] = []
    changes = np.flatnonzero(np.diff(groups[order])) + 1
    for start, end in itertools.pairwise([0, *changes.tolist(), len(order)]):
        first = start
        while first < end:
            starts.append(first)
            filled = ends[first - 1] if first else 0
            after = start + int(np.searchsorted(ends[start:end], filled + limit, "right"))
            first = max(first + 1, after)
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    bounds = np.array([*starts, len(order)], np.int64)
    filled = np.concatenate([[0], ends])
    return ShardOrder(positions, bounds, np.diff(filled[bounds]))


def plan_shards(samples: pa.Table, config: ShardConfig, first_number: int = 0) -> list[ShardPlan]:
    """Plan the shards of samples as `shard_order` places them.

    Args:
        samples: Samples, in any order; see `reelweave.curate.run.tables.samples`.
        config: The limit.
        first_number: Number of the first shard.
    """
    by_key = pc.rank(column(samples, "key"), sort_keys="ascending", tiebreaker="first").to_numpy()
    group_numbers = GroupNumbers()
    groups = group_numbers.of(samples)
    order = shard_order(
        group_numbers.in_order()[groups], [by_key], column(samples, "clip_bytes").to_numpy(), config
    )
    return plans_of(samples, order.places, order.ends.tolist(), first_number)


def plans_of(
    samples: pa.Table, positions: NDArray[np.int64], ends: Sequence[int], first_number: int
) -> list[ShardPlan]:
    """Return the plans of consecutive shards.

    Args:
        samples: Samples of these shards.
        positions: Position of each in the order of shards.
        ends: First place of each shard, and the place after the last one.
        first_number: Number of the first shard.
    """
    # Column by column: to take each shard from all columns would read memory here and there.
    samples = samples.take(pa.array(np.argsort(positions))).combine_chunks()
    return [
        ShardPlan.of(index, samples.slice(first - ends[0], end - first))
        for index, (first, end) in enumerate(itertools.pairwise(ends), first_number)
    ]


class GroupNumbers:
    """Numbers of groups of samples, which share split and bin, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def of(self, samples: pa.Table) -> NDArray[np.int64]:
        """Return the number of each sample's group."""
        split, bins = (column(samples, name).dictionary_encode() for name in ("split", "bin"))
        codes = split.indices.to_numpy().astype(np.int64) * len(bins.dictionary) + bins.indices.to_numpy()
        names = [
            (split_name, other)
            for split_name in split.dictionary.to_pylist()
            for other in bins.dictionary.to_pylist()
        ]
        group_of_code = np.zeros(len(names), np.int64)
        for code in np.unique(codes).tolist():
            group_of_code[code] = self._numbers.setdefault(names[code], len(self._numbers))
        return np.asarray(group_of_code[codes], np.int64)

    def in_order(self) -> NDArray[np.int64]:
        """Return the rank of each number's group by split and bin."""
        ranks = np.empty(len(self._numbers), np.int64)
        for rank, names in enumerate(sorted(self._numbers)):
            ranks[self._numbers[names]] = rank
        return ranks


def untouched_shards(shards: Sequence[ShardRecord], new_samples: pa.Table) -> list[ShardRecord]:
    """Return the shards of the present revision that may stay as they are: all their samples are wanted, unchanged."""
    keys = TextPlaces(column(new_samples, "key"))

    def stays(shard: ShardRecord) -> bool:
        present = as_table(shard.rows)
        rows = keys.find(column(present, "key"))
        if not len(rows) or (rows < 0).any():
            return False
        samples = new_samples.take(pa.array(rows))
        now = index_columns(samples).append_column("embeddings", embedding_digests(samples))
        return bool(present.select(now.column_names).cast(now.schema).equals(now))

    return [shard for shard in shards if stays(shard)]


Written = TypeVar("Written", bound=ShardRecord)


def revisions_of(dataset: Dataset | None) -> Mapping[str, int]:
    """Return `CurateConfig.revisions` of the code that decided a dataset."""
    revisions: Mapping[str, int] = {} if dataset is None else dataset.manifest.config.get("revisions", {})
    return revisions


def scores_of(dataset: Dataset) -> Mapping[str, int]:
    """Return the versions of later scores that a dataset's manifest says no clip lacks."""
    scores: Mapping[str, int] = dataset.manifest.config.get("scores", {})
    return scores


def finished_shards(ledger: Ledger, stage: str, fingerprint: str, kind: type[Written]) -> dict[str, Written]:
    """Return the shards that a stage finished and that are still there, by identity of their plan, without their rows.

    A run with other settings that finished in between has removed the shards it did not need.

    Args:
        ledger: The ledger.
        stage: Name of the stage.
        fingerprint: Digest of its configuration.
        kind: Type of its records.
    """
    sizes = {item.path: item.size for item in ledger.storage.list("shards/")}
    closed = ledger.entries.read(stage, fingerprint, lambda values: from_json(kind, values))
    return {name: shard for name, shard in closed.items() if sizes.get(shard.path) == shard.size}


def close_shard(ledger: Ledger, stage: str, fingerprint: str, name: str, written: ShardRecord) -> None:
    """Record a written shard: its index rows as a table, then its entry.

    Args:
        ledger: The ledger.
        stage: Name of the stage.
        fingerprint: Digest of its configuration.
        name: Identity of the shard's plan.
        written: The shard.
    """
    ledger.blobs.write_table(_rows_name(stage, name), as_table(written.rows))
    ledger.entries.write(stage, fingerprint, name, replace(written, rows=()))


def _rows_name(stage: str, name: str) -> str:
    return f"{stage}/rows/{name}"


def with_rows(ledger: Ledger, stage: str, name: str, shard: Written, samples: int) -> Written:
    """Return a finished shard with the index rows of its samples, which are read when they are asked for.

    Args:
        ledger: The ledger.
        stage: Name of the stage.
        name: Identity of the shard's plan.
        shard: The shard, see `finished_shards`.
        samples: Number of its samples.
    """
    if shard.rows or not samples:  # entries of earlier versions hold the rows
        return replace(shard, rows=TableRows(as_table(shard.rows)))

    def beside() -> pa.Table:
        table = ledger.blobs.read_table(_rows_name(stage, name))
        if table is None or len(table) != samples:
            raise RunError(f"the rows of {shard.path} are not in the ledger; run the same command again")
        return read_back(table)

    return replace(shard, rows=TableRows(beside, samples))


@dataclass(frozen=True)
class WriteShard:
    """Function that writes planned shards and returns the plans without their samples; clips are read one by one."""

    ledger: Ledger
    fingerprint: str

    def __call__(self, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
        """Write each shard and record it in the ledger."""
        return [self._write(plan) for plan in plans]

    def _write(self, plan: ShardPlan) -> ShardPlan:
        assert plan.samples is not None
        written = write_shard(self.ledger.storage, plan.number, self._samples(plan.samples))
        close_shard(self.ledger, STAGE, self.fingerprint, plan.id, written)
        return replace(plan, samples=None)

    def _samples(self, samples: pa.Table) -> Iterator[Sample]:
        rows = to_rows(index_columns(samples))
        beside = samples.select(["clip_id", "text.arrays", "place.shard", "place.offset", "place.size"])
        for row, extra, vector in zip(rows, beside.to_pylist(), vectors_of(samples), strict=True):
            embeddings = {}
            if extra["text.arrays"] is not None:
                embeddings["text.npy"] = self.ledger.blobs.read_arrays(extra["text.arrays"])["text"]
            if vector is not None:
                embeddings["video.npy"] = vector
            where = (extra["place.shard"], extra["place.offset"], extra["place.size"])
            location = None if where[0] is None else ClipPlace(*where)
            yield Sample(row, clip_bytes(self.ledger, extra["clip_id"], location), embeddings)
