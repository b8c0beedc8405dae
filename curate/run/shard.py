"""Shards of kept samples: planning all, writing one."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.config import ShardConfig
from curate.ledger import Ledger
from curate.records import from_json
from curate.run.stages.clip_stages import clip_bytes
from curate.run.tables.columns import column, places_in
from curate.run.tables.samples import embedding_digests, from_ipc, index_columns, to_ipc, vectors_of
from curate.source_pass.tasks import ClipPlace
from loader.dataset import Sample, ShardRecord, write_shard
from loader.dataset.tables.parquet import to_rows
from loader.dataset.tables.shard_rows import TableRows, as_table, read_back

STAGE = "shard"


@dataclass(frozen=True)
class ShardPlan:
    """Samples of one shard, in order.

    Attributes:
        number: Place of the shard among all shards.
        id: Digest of the number and the content.
        samples: The samples, see `curate.run.tables.samples`; None once the shard is written.
    """

    number: int
    id: str
    samples: pa.Table | None

    @staticmethod
    def of(number: int, samples: pa.Table) -> "ShardPlan":
        """Plan a shard with samples."""
        # Neither where a clip lies now, nor a score that only others have, changes what the shard will hold.
        unmeasured = [
            name for name in samples.column_names if samples.column(name).null_count == len(samples)
        ]
        content = samples.drop_columns({*unmeasured, "place.shard", "place.offset", "place.size"})
        digest = hashlib.sha256(to_ipc(content)).hexdigest()
        return ShardPlan(number, f"{number:06d}-{digest[:16]}", samples)

    @property
    def clip_bytes(self) -> int:
        """Size of all its clips."""
        return (
            0 if self.samples is None else int(pc.sum(self.samples.column("clip_bytes"), min_count=0).as_py())
        )

    def __getstate__(self) -> dict[str, object]:
        # A pickled slice would carry the whole table.
        return {**vars(self), "samples": None if self.samples is None else to_ipc(self.samples)}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        data = state["samples"]
        vars(self).update(state, samples=from_ipc(data) if isinstance(data, bytes) else None)


def plan_shards(samples: pa.Table, config: ShardConfig, first_number: int = 0) -> list[ShardPlan]:
    """Plan shards of one split and bin each, samples sorted by key, a new shard where the next clip exceeds the limit.

    A pure function. A clip larger than the limit gets a shard of its own.

    Args:
        samples: Samples, in any order; see `curate.run.tables.samples`.
        config: The limit.
        first_number: Number of the first shard.
    """
    names = ("split", "bin", "key")
    order = pc.sort_indices(samples, [(name, "ascending") for name in names])
    narrow = samples.select([*names, "clip_bytes"]).take(order)
    limit = config.max_shard_mb * 1e6
    plans: list[ShardPlan] = []
    for group in _groups(narrow):
        ends = np.cumsum(column(narrow, "clip_bytes").to_numpy()[group])
        first = filled = 0
        while first < len(ends):
            after = max(first + 1, int(np.searchsorted(ends, filled + limit, "right")))
            rows = order[group.start + first : group.start + after]
            plans.append(ShardPlan.of(first_number + len(plans), samples.take(rows)))
            first, filled = after, int(ends[after - 1])
    return plans


def _groups(samples: pa.Table) -> Iterator[slice]:
    """Yield the rows of each split and bin of sorted samples."""
    changes = np.zeros(max(0, len(samples) - 1), bool)
    for name in ("split", "bin"):
        codes = column(samples, name).dictionary_encode().indices.to_numpy()
        changes |= np.diff(codes) != 0
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(samples)]
    return (slice(start, end) for start, end in itertools.pairwise(starts) if end > start)


def untouched(shards: Sequence[ShardRecord], wanted: pa.Table) -> list[ShardRecord]:
    """Return the shards of the present revision that may stay as they are: all their samples are wanted, unchanged."""

    def stays(shard: ShardRecord) -> bool:
        present = as_table(shard.rows)
        rows = places_in(column(present, "key"), column(wanted, "key"))
        if not len(rows) or (rows < 0).any():
            return False
        samples = wanted.take(pa.array(rows))
        now = index_columns(samples).append_column("embeddings", embedding_digests(samples))
        return bool(present.select(now.column_names).cast(now.schema).equals(now))

    return [shard for shard in shards if stays(shard)]


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
    closed = ledger.closed(stage, fingerprint, lambda values: from_json(kind, values))
    whole = {name: shard for name, shard in closed.items() if sizes.get(shard.path) == shard.size}
    return {name: replace(shard, rows=_rows(ledger, stage, name, shard)) for name, shard in whole.items()}


def _rows(ledger: Ledger, stage: str, name: str, shard: ShardRecord) -> TableRows:
    """Return the index rows of a shard as a table, whether they lie beside its entry or in it."""
    beside = None if shard.rows else ledger.read_table(f"{stage}/rows/{name}")
    return TableRows(as_table(shard.rows) if beside is None else read_back(beside))


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
        self.ledger.write_table(f"{STAGE}/rows/{plan.id}", as_table(written.rows))
        self.ledger.close(STAGE, self.fingerprint, plan.id, replace(written, rows=()))
        return replace(plan, samples=None)

    def _samples(self, samples: pa.Table) -> Iterator[Sample]:
        rows = to_rows(index_columns(samples))
        beside = samples.select(["clip_id", "text.arrays", "place.shard", "place.offset", "place.size"])
        for row, own, vector in zip(rows, beside.to_pylist(), vectors_of(samples), strict=True):
            embeddings = {}
            if own["text.arrays"] is not None:
                embeddings["text.npy"] = self.ledger.read_arrays(own["text.arrays"])["text"]
            if vector is not None:
                embeddings["video.npy"] = vector
            where = (own["place.shard"], own["place.offset"], own["place.size"])
            place = None if where[0] is None else ClipPlace(*where)
            yield Sample(row, clip_bytes(self.ledger, own["clip_id"], place), embeddings)
