"""Datasets over existing tars of other origin: one table per tar, combined to one index.

The tars are only read. A parquet file per tar stores the result of one pass over it, so each tar is read
once. Index, accounting and manifest follow from these files alone.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset.manifest import (
    MDS,
    REMOVAL_STAGE,
    FileEntry,
    Foreign,
    Manifest,
    Removal,
    ShardEntry,
    Totals,
    count_states,
    plan_path,
    qualifier,
    sha256,
    table_path,
)
from reelweave.loader.dataset.publishing.payload import Payload, entry_of
from reelweave.loader.dataset.publishing.publication import IndexMaker, read_once, write_accounting
from reelweave.loader.dataset.publishing.tar_index import TarIndex, select_whole
from reelweave.loader.dataset.publishing.writer import publish_files
from reelweave.loader.dataset.schema import ACCOUNTING, INDEX, SCORES, TABLES
from reelweave.loader.dataset.shard import ShardRecord
from reelweave.loader.dataset.tables.parquet import (
    ParquetWriter,
    batches_of_parquet,
    from_parquet,
    to_parquet,
    to_table,
)
from reelweave.loader.dataset.tables.row_parts import RowParts, hash_parts, part_count
from reelweave.loader.dataset.tables.shard_rows import MAYBE_CRC32, TableRows
from reelweave.loader.dataset.tars.energon import EnergonShard, energon_files
from reelweave.loader.dataset.tars.members import media_members
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.scratch import Scratch

STAGE = "index"
_KEYS = pa.schema([("key", pa.string()), ("place", pa.int64())])
_THREADS = 16


def publish_foreign(
    storage: Storage,
    tars: Sequence[TarIndex],
    foreign: Foreign,
    config: dict[str, Any],
    versions: dict[str, str],
    previous: Manifest | None,
    with_sidecars: bool,
    removals: Sequence[Removal] = (),
) -> tuple[Manifest, list[str]]:
    """Publish a dataset over tars, or its next revision, with the manifest last in one conditional write.

    Args:
        storage: storage of the dataset.
        tars: results of the tars, sorted by path.
        foreign: location of the tars.
        config: configuration for the manifest.
        versions: versions for the manifest.
        previous: manifest to replace, as read; None for a new dataset.
        with_sidecars: True to write ``.nv-meta``.
        removals: samples to leave out from now on, beside those of ``previous``; the tars keep their bytes.

    Returns:
        The current manifest, and existing ``.idx`` files of other origin that contradict the tars.

    Raises:
        RunError: another process has published here in the meantime.
    """
    tars = _qualify_keys(tars, previous)
    removals = [*(previous.removals if previous else []), *removals]
    removed = [_removal_indices(tar, removals) for tar in tars]
    retained = [usable & (gone < 0) for usable, gone in zip(_sample_masks(tars), removed, strict=True)]
    # What readers of tars ask for lies beside tars alone.
    has_idx = foreign.uri is None and not config.get("index", {}).get(MDS)
    idx, idx_entries = _idx_files(storage, tars, previous) if has_idx else ([], [])
    with Scratch("reelweave-publish-") as name:
        folder = Path(name)
        shards = [_Shard.of(tar, usable) for tar, usable in zip(tars, retained, strict=True)]
        clip_bytes = sum(int(media_members(shard.rows()).size.sum()) for shard in shards)
        # With Parquet's names of nested columns, as the tables of tars are stored: indexes keep their bytes.
        schema = from_parquet(to_parquet(INDEX.empty_table())).schema
        index = IndexMaker([shard.record for shard in shards], schema)
        with RowParts(MAYBE_CRC32, index.parts) as rows:
            index.write(index.divide(rows), rows, folder)
        states, sources = write_accounting(
            folder / "accounting.parquet",
            read_once(_accounting(tars, retained, removed, removals), ACCOUNTING),
        )
        with ParquetWriter(folder / "scores.parquet", SCORES):
            pass
        durations = [
            batch.column(0) for batch in batches_of_parquet(folder / "index.parquet", ["duration_s"])
        ]
        manifest = Manifest(
            totals=Totals(
                samples=index.samples,
                sources=sources,
                # Of one array: the sum of parts is another in its last digits.
                duration_s=pc.sum(pa.concat_arrays([pa.array([], pa.float64()), *durations])).as_py() or 0.0,
                clip_bytes=clip_bytes,
                accounting=count_states(states),
            ),
            shards=[shard.entry for shard in shards],
            files=[],
            config=config,
            versions=versions,
            removals=removals,
            foreign=foreign,
        )
        sidecars = energon_files(_energon(tars, retained), folder) if with_sidecars else {}

        def compose(revision: int) -> tuple[Manifest, dict[str, Payload]]:
            contents: dict[str, Payload] = {
                table_path(name, revision): folder / f"{name}.parquet" for name in TABLES
            }
            contents |= {plan_path(revision): folder / "plan.arrow", **sidecars}
            files = [entry_of(path, payload) for path, payload in contents.items()]
            return manifest.model_copy(update={"revision": revision, "files": [*files, *idx]}), contents

        return publish_files(storage, compose, previous, folder), idx_entries


@dataclass(frozen=True)
class _Shard:
    """A tar, and which of its rows are samples."""

    tar: TarIndex
    kept: pa.BooleanArray

    @staticmethod
    def of(tar: TarIndex, retained: NDArray[np.bool_]) -> "_Shard":
        return _Shard(tar, pa.array(retained))

    def rows(self) -> pa.Table:
        return self.tar.table.filter(self.kept)

    @property
    def record(self) -> ShardRecord:
        rows = TableRows(self.rows, self.kept.true_count)
        return ShardRecord(self.tar.path, self.tar.size, self.tar.sha256, rows)

    @property
    def entry(self) -> ShardEntry:
        samples, qualified = self.kept.true_count, self.tar.qualified
        return ShardEntry(
            path=self.tar.path,
            size=self.tar.size,
            sha256=self.tar.sha256,
            samples=samples,
            qualified=qualified,
        )


def _qualify_keys(tars: Sequence[TarIndex], previous: Manifest | None) -> list[TarIndex]:
    """Qualify the keys of tars that would repeat others, so that tars that all count from 0 keep every sample.

    Tars of an earlier revision keep their keys; new ones are qualified together or not at all.
    """
    previous_shards = {entry.path: entry for entry in previous.shards} if previous else {}
    old = [tar.path in previous_shards and previous_shards[tar.path].sha256 == tar.sha256 for tar in tars]
    was = [tar.path in previous_shards and previous_shards[tar.path].qualified for tar in tars]
    fresh = any(entry.qualified for entry in previous_shards.values()) or _repeat_each_other(tars, old, was)
    return [
        replace(tar, qualified=True) if qualified or (fresh and not settled) else tar
        for tar, settled, qualified in zip(tars, old, was, strict=True)
    ]


def _repeat_each_other(tars: Sequence[TarIndex], old: Sequence[bool], qualified: Sequence[bool]) -> bool:
    """Return whether a key of a new tar also occurs in another tar, among the unqualified ones."""
    new = ~np.array(old, np.bool_)
    with RowParts(_KEYS, part_count(sum(tar.rows for tar in tars))) as keys:
        for tar_index, tar in enumerate(tars):
            if not qualified[tar_index]:
                table = tar.table
                tar_keys = table.filter(_usable(table)).column("key")
                of = pa.array(np.full(len(tar_keys), tar_index, np.int64))
                keys.add(pa.table([tar_keys, of], schema=_KEYS), hash_parts(tar_keys, keys.parts))
        return any(_of_several(keys.read(part), new) for part in range(keys.parts))


def _of_several(keys: pa.Table, new: NDArray[np.bool_]) -> bool:
    """Return whether a key is of several tars, one of them new."""
    place_N = np.asarray(keys.column("key").combine_chunks().dictionary_encode().indices, np.int64)
    pairs = np.unique(place_N * len(new) + keys.column("place").to_numpy())  # each (key, tar) pair once
    in_several = np.bincount(pairs // len(new), minlength=1) > 1
    return bool((in_several[pairs // len(new)] & new[pairs % len(new)]).any())


def _usable(table: pa.Table) -> pa.BooleanArray:
    return pc.equal(table.column("reason").combine_chunks(), "")


def _sample_masks(tars: Sequence[TarIndex]) -> list[NDArray[np.bool_]]:
    """Return per tar a mask of the rows that become samples: usable, and the first with their key."""
    starts = np.cumsum([0, *(tar.rows for tar in tars)])
    retained = np.zeros(starts[-1], np.bool_)
    with RowParts(_KEYS, part_count(len(retained))) as keys:
        for tar, start in zip(tars, starts.tolist(), strict=False):
            table = tar.table
            indices = start + np.flatnonzero(np.asarray(_usable(table)))
            tar_keys = table.column("key").take(pa.array(indices - start))
            keys.add(pa.table([tar_keys, pa.array(indices)], schema=_KEYS), hash_parts(tar_keys, keys.parts))
        for part in range(keys.parts):
            first_rows = keys.read(part)
            names = first_rows.column("key").combine_chunks().dictionary_encode().indices
            first = np.unique(np.asarray(names), return_index=True)[1]
            retained[first_rows.column("place").to_numpy()[first]] = True
    return np.split(retained, starts[1:-1])


def _removal_indices(tar: TarIndex, removals: Sequence[Removal]) -> IndexArray:
    """Return the place of each row's removal, int64; -1 for rows that nobody removed."""
    table = tar.table
    place_n = np.full(len(table), -1, np.int64)
    # A sample may be of a source that its metadata names; as in the accounting, it is one of its own, too.
    in_tar = pc.binary_join_element_wise(pa.scalar(tar.path), _plain(tar, table.column("key")), "/")
    columns = (("key", table.column("key")), ("source", table.column("source")), ("source", in_tar))
    for name, column in columns:
        indices = [index for index, removal in enumerate(removals) if getattr(removal, name) is not None]
        values = pa.array([getattr(removals[index], name) for index in indices], pa.string())
        found_n = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy()
        usable_n = (found_n >= 0) & np.asarray(_usable(table)) & (place_n < 0)
        place_n[usable_n] = np.array(indices, np.int64)[found_n[usable_n]]
    return place_n


def _accounting(
    tars: Sequence[TarIndex],
    retained: Sequence[NDArray[np.bool_]],
    removed: Sequence[IndexArray],
    removals: Sequence[Removal],
) -> Iterator[pa.Table]:
    """Yield one accounting row per sample, and one per damaged tar."""
    words = [removal.words for removal in removals]
    for tar, usable, gone in zip(tars, retained, removed, strict=True):
        if tar.damage:
            reason = f"the {'shard' if tar.path.endswith('.mds') else 'tar'} {'; it '.join(tar.damage)}"
            row = {"source": tar.path, "state": "failed", "stage": STAGE, "reason": reason}
            yield to_table([row], ACCOUNTING)
        yield _samples_accounting(tar, pa.array(usable), pa.array(gone), words)


def _samples_accounting(
    tar: TarIndex, retained: pa.BooleanArray, removal: pa.Array, words: Sequence[str]
) -> pa.Table:
    """Return the rows of a tar's samples.

    Args:
        tar: the tar.
        retained: True for samples of the dataset.
        removal: place of each sample's removal in ``words``; -1: none.
        words: reasons of the removals.
    """
    # Why a sample is out: it was taken down, it is damaged, or its key came before.
    removed = pc.greater_equal(removal, 0)
    why = pa.array(["", *words], pa.string()).take(pc.add(removal, 1))
    table = tar.table.combine_chunks()
    key, offset, end_s, reason = (
        table.column(name).combine_chunks() for name in ("key", "offset", "end_s", "reason")
    )
    # Samples without a place in the dataset are named by their offset, since keys may repeat.
    name = pc.binary_join_element_wise(pa.scalar(tar.path), _plain(tar, key), "/")
    position = pc.binary_join_element_wise(name, offset.cast(pa.string()), " at byte ")
    second = pc.if_else(
        pc.equal(reason, ""), "its key is that of a sample before it in the tar; keys are unique", reason
    )
    nothing = pa.nulls(len(table), pa.float64())
    named = pc.or_(retained, removed)
    columns = {
        "source": pc.if_else(named, name, position),
        "start_s": pc.if_else(named, 0.0, nothing),
        "end_s": pc.if_else(named, end_s, nothing),
        "key": pc.if_else(named, key, pa.nulls(len(table), pa.string())),
        "state": pc.if_else(retained, "kept", pc.if_else(removed, "filtered", "failed")),
        "stage": pc.if_else(removed, REMOVAL_STAGE, STAGE),
        "reason": pc.if_else(retained, "", pc.if_else(removed, why, second)),
        "score": nothing,
        "threshold": nothing,
        "duplicate_of": pa.nulls(len(table), pa.string()),
    }
    return pa.Table.from_pydict(columns, schema=ACCOUNTING)


def _energon(tars: Sequence[TarIndex], retained: Sequence[NDArray[np.bool_]]) -> Iterator[EnergonShard]:
    columns = ["key", "offset", "size", "members", "split"]
    for tar, usable in zip(tars, retained, strict=True):
        table = tar.table
        in_tar = np.asarray(pc.greater(table.column("size"), 0))
        samples = select_whole(table).select(columns)
        rows = samples.filter(pa.array(usable[in_tar]))
        indices = np.flatnonzero(usable[in_tar]).tolist()
        used = set(rows.column("key").to_pylist())
        # Energon excludes by the key in the tar, so a duplicate of a used key cannot be excluded alone.
        unused = samples.filter(
            pa.array([key not in used for key in samples.column("key").to_pylist()], pa.bool_())
        )
        excluded = _plain(tar, unused.column("key")).to_pylist()
        split = rows.column("split")[0].as_py() if len(rows) else "train"
        yield EnergonShard(tar.path, tar.sha256, len(samples), rows, indices, split, excluded)


def _plain(tar: TarIndex, key: Any) -> Any:
    """Return the keys as they are in the tar."""
    return pc.utf8_slice_codeunits(key, len(qualifier(tar.path))) if tar.qualified else key


def _idx_files(
    storage: Storage, tars: Sequence[TarIndex], previous: Manifest | None
) -> tuple[list[FileEntry], list[str]]:
    """Write missing ``.idx`` files and our own; return entries of correct ones, and paths of the others."""
    ours = {file.path for file in previous.files} if previous else set()

    def write(tar: TarIndex) -> tuple[FileEntry, bool]:
        path, data = f"{tar.path}.idx", tar.idx
        info = storage.stat(path)
        as_it_should = info is not None and info.size == len(data) and storage.read(path) == data
        if not as_it_should and (info is None or path in ours):
            storage.write(path, data)
            as_it_should = True
        return FileEntry(path=path, size=len(data), sha256=sha256(data)), as_it_should

    with ThreadPoolExecutor(_THREADS) as pool:
        written = list(pool.map(write, tars))
    good = [entry for entry, as_it_should in written if as_it_should]
    return good, [entry.path for entry, as_it_should in written if not as_it_should]
