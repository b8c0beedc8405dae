"""Results of a stage over clips as columns, found by the identity of what they depend on."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.dedup.text_hashes import hashes
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult, ClipScores, PackedArray, clip_result, to_columns
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.run.tables.clips import SCORE, score_names, wide_scores, with_columns
from reelweave.curate.run.tables.columns import (
    Mask,
    column,
    filter_rows,
    mask_of,
    places_in,
    take_rows,
    whole,
)
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.loader.errors import RunError

# Embeddings and captions of a million clips exceed the 2 GiB that offsets of 32 bits reach.
_PACKED = pa.struct({"dtype": pa.string(), "shape": pa.list_(pa.int64()), "data": pa.large_string()})

RESULTS = pa.schema(
    {
        "id": pa.string(),
        "fault": pa.string(),
        "text": pa.large_string(),
        "source": pa.string(),
        "provenance": pa.map_(pa.string(), pa.string()),
        "written": pa.large_list(pa.large_string()),
        "embedding": _PACKED,
        "tokens": pa.int64(),
        "arrays": pa.string(),
        "sha256": pa.string(),
    }
)
"""Fields of results of any kind, null where a kind has no such field; a column for each score follows."""

_ENTRIES = 4096


class StageResults:
    """All results of one stage; those of this run become segments of the ledger as it goes on.

    Args:
        ledger: Entries of this run and of earlier ones.
        stage: Name of the stage.
        fingerprint: Digest of its configuration.
        partitions: Number of partitions of clips.
        earlier: Digests of the same under earlier revisions of the code, the newest first, whose entries count where
            there is none of this one.

    Attributes:
        older: Identities of which an earlier revision alone has a result.
    """

    def __init__(
        self, ledger: Ledger, stage: str, fingerprint: str, partitions: int, earlier: Sequence[str] = ()
    ) -> None:
        self._ledger, self._stage, self._fingerprint = ledger, stage, fingerprint
        self._partitions = partitions
        self._loose: dict[str, ClipResult] = {}
        self._every = Partitions(1, RESULTS, partitions > 1)  # as they came
        for name in reversed(earlier):
            for entries in ledger.entries.tables(stage, name, clip_result):
                self._every.add(0, from_entries(entries))
        older = [column(table, "id") for table in self._every.tables(0)]
        current: list[pa.Array] = []
        for entries in ledger.entries.tables(stage, fingerprint, clip_result):
            self._every.add(0, from_entries(entries))
            if older:
                current.append(column(entries, "id"))
        self.older = _without(older, current)
        self._placed: Partitions | None = None
        self._version = -1

    def add(self, identity: str, result: ClipResult) -> None:
        """Add a result that is in the ledger; many become a segment."""
        self._loose[identity] = result
        self._version = -1
        if len(self._loose) >= _ENTRIES:
            self._ledger.entries.append(self._stage, self._fingerprint, self._loose)
            self._every.add(0, self._recent())
            self._loose = {}

    def place(self, version: int, identities: Callable[[], Iterable[pa.Array]]) -> None:
        """Put results beside the clips that ask for them, unless they are there already.

        Args:
            version: Number that grows whenever clips change.
            identities: Returns the identities of all clips that ask, partition by partition.
        """
        if self._version == version:
            return
        self._version = version
        if self._partitions == 1:
            return
        identity_hashes = [hashes(ids) for ids in identities()]
        parts = np.repeat(np.arange(len(identity_hashes), dtype=np.int32), list(map(len, identity_hashes)))
        all_hashes = np.concatenate(identity_hashes)
        order = np.argsort(all_hashes, kind="stable")
        all_hashes, parts = all_hashes[order], parts[order]
        del identity_hashes, order
        self._placed = Partitions(self._partitions, RESULTS, True)
        for table in itertools.chain(self._every.tables(0), [self._recent()]):
            table_hashes = hashes(column(table, "id"))
            order = np.argsort(table_hashes, kind="stable")  # values in order are found ten times as fast
            first, end = (
                np.searchsorted(all_hashes, table_hashes[order], side) for side in ("left", "right")
            )
            counts = end - first
            rows = np.repeat(order, counts)
            nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            partitions = parts[np.repeat(first, counts) + nth]
            arrived = np.argsort(rows, kind="stable")
            self._placed.scatter(table.take(pa.array(rows[arrived])), partitions[arrived])

    def find(self, partition: int, identities: pa.Array) -> pa.Table:
        """Return the result of each identity in a partition; a row of nulls where there is none."""
        if self._placed is not None:
            stored = self._placed.read(partition)
        else:
            stored = whole([*self._every.tables(0), self._recent()] if self._loose else self._only(), RESULTS)
        # Later results replace earlier ones.
        newest_first = column(stored, "id").take(pa.array(np.arange(len(stored))[::-1]))
        rows = places_in(identities, newest_first)
        return take_rows(stored, np.where(rows >= 0, len(stored) - 1 - rows, -1))

    def forget_older(self) -> None:
        """Count clips as not done of which an earlier revision of the code alone has a result."""
        if len(self.older):
            self._keep(lambda table: ~mask_of(pc.is_in(column(table, "id"), value_set=self.older)))
            self.older = _without([], [])

    def forget_faults(self) -> None:
        """Count clips that failed as not done."""
        self._keep(lambda table: mask_of(pc.is_null(column(table, "fault"))))
        self._loose = {
            clip_id: clip_result
            for clip_id, clip_result in self._loose.items()
            if not isinstance(clip_result, Fault)
        }

    def _keep(self, select: Callable[[pa.Table], Mask]) -> None:
        """Keep some results of segments."""
        earlier, self._every = self._every, Partitions(1, RESULTS, self._partitions > 1)
        for table in earlier.tables(0):
            self._every.add(0, filter_rows(table, select(table)))
        self._version = -1

    def _only(self) -> list[pa.Table]:
        """Return all results of segments as at most one table, which is kept."""
        if self._every.parts(0) > 1:
            self._every.replace(0, self._every.read(0))
        return list(self._every.tables(0))

    def _recent(self) -> pa.Table:
        """Return the results of this run that are in no segment yet."""
        ids = pa.array(list(self._loose), pa.string())
        return from_entries(pa.table({"id": ids, **to_columns(list(self._loose.values()))}))


def _without(some: Sequence[pa.Array], excluded: Sequence[pa.Array]) -> pa.Array:
    """Return the texts of some arrays that are in none of others."""
    ids, right = (pa.concat_arrays([pa.array([], pa.string()), *each]) for each in (some, excluded))
    return ids.filter(pc.invert(pc.is_in(ids, value_set=right))) if len(ids) else ids


def from_entries(entries: pa.Table) -> pa.Table:
    """Return results by the columns of their entries in the ledger."""
    columns = {
        field.name: column(entries, field.name).cast(field.type)
        if field.name in entries.column_names
        else pa.nulls(len(entries), field.type)
        for field in RESULTS
    }
    scores = wide_scores(column(entries, "scores")) if "scores" in entries.column_names else {}
    return with_columns(pa.table(columns, RESULTS), scores)


def to_results(table: pa.Table) -> list[ClipResult | None]:
    """Return the results of rows; None for a row of nulls."""
    names = score_names(table)
    clip_results: list[ClipResult | None] = []
    for row in table.to_pylist(maps_as_pydicts="strict"):
        scores = {name: value for name in names if (value := row[f"{SCORE}{name}"]) is not None}
        values = {name: row[name] for name in RESULTS.names if name != "id" and row[name] is not None}
        if row["id"] is None:
            clip_results.append(None)
        elif values:
            clip_results.append(clip_result({**values, "scores": scores or None}))
        else:
            clip_results.append(ClipScores(scores))
    return clip_results


def there(results: pa.Table) -> Mask:
    """Return which rows have a result."""
    return mask_of(pc.is_valid(column(results, "id")))


def packed_arrays(results: pa.Table) -> tuple[NDArray[Any], Mask]:
    """Return the embedding of each row, [rows, D], and which rows have one; the others are zero.

    Raises:
        RunError: their sizes differ.
    """
    packed = column(results, "embedding")
    has = mask_of(pc.is_valid(packed))
    rows = packed.filter(pa.array(has)).to_pylist()
    arrays = [PackedArray(row["dtype"], tuple(row["shape"]), row["data"]).array for row in rows]
    if not arrays:
        return np.zeros((len(results), 1), np.float16), has
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise RunError(f"the vectors of clips have different sizes: {', '.join(map(str, sorted(shapes)))}")
    matrix = np.zeros((len(results), *arrays[0].shape), arrays[0].dtype)
    matrix[has] = np.stack(arrays)
    return matrix, has
