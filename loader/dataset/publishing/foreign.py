"""Datasets over existing tars of other origin: one table per tar, combined to one index.

The tars are only read. A parquet file per tar stores the result of one pass over it, so each tar is read
once. Index, accounting and manifest follow from these files alone.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loader.dataset.manifest import (
    FileEntry,
    Foreign,
    Manifest,
    ShardEntry,
    Totals,
    count_states,
    plan_path,
    qualifier,
    sha256,
    table_path,
)
from loader.dataset.plan_index import from_index, to_arrow
from loader.dataset.publishing.payload import Payload, entry_of
from loader.dataset.publishing.writer import publish_files
from loader.dataset.schema import ACCOUNTING, INDEX, SCORES
from loader.dataset.shard import idx_bytes
from loader.dataset.tables.parquet import from_parquet, to_parquet, to_table
from loader.dataset.tars.energon import EnergonShard, energon_files
from loader.dataset.tars.members import media_members
from loader.storage.base import Storage
from loader.storage.scratch import Scratch

TAR_TABLE = INDEX.append(pa.field("sample_crc32", pa.uint32(), nullable=False)).append(
    pa.field("reason", pa.string(), nullable=False)
)
"""Schema with one row per sample of a tar in its order; ``reason`` says why a sample is unusable, or is empty."""

STAGE = "index"
_FACTS = b"reelweave"
_THREADS = 16


@dataclass(frozen=True, eq=False)
class TarIndex:
    """Result of one pass over a tar.

    Attributes:
        path: path of the tar.
        size: size of the tar in bytes.
        version: version of the object in its storage.
        sha256: checksum of the whole tar.
        damage: damages of the tar itself, one sentence each.
        probe: version of the code that made the pass.
        table: columns ``TAR_TABLE``; samples with a missing end have size 0.
        qualified: True if the keys in ``table`` are prefixed by the tar's path; they never are in the file.
    """

    path: str
    size: int
    version: str
    sha256: str
    damage: tuple[str, ...]
    probe: int
    table: pa.Table
    qualified: bool = False

    def to_bytes(self) -> bytes:
        """Return the content as a parquet file."""
        names = ("path", "size", "version", "sha256", "damage", "probe")
        facts = json.dumps({name: getattr(self, name) for name in names})
        return to_parquet(self.table.replace_schema_metadata({_FACTS: facts}))

    @staticmethod
    def from_bytes(data: bytes) -> "TarIndex | None":
        """Parse such a file; None if it is invalid or of another version of this code."""
        try:
            table = from_parquet(data)
            facts = json.loads((table.schema.metadata or {})[_FACTS])
            table = table.replace_schema_metadata(None)
            if not table.schema.equals(TAR_TABLE):
                return None
            return TarIndex(**{**facts, "damage": tuple(facts["damage"])}, table=table)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def whole(self) -> pa.Table:
        """Rows of the samples that are complete in the tar."""
        return self.table.filter(pc.greater(self.table.column("size"), 0))

    @property
    def idx(self) -> bytes:
        """Content of the tar's ``.idx`` file."""
        offsets, sizes = self.whole.column("offset").to_pylist(), self.whole.column("size").to_pylist()
        return idx_bytes(offsets, offsets[-1] + sizes[-1] if offsets else 0)


def publish_foreign(
    storage: Storage,
    tars: Sequence[TarIndex],
    foreign: Foreign,
    config: dict[str, Any],
    versions: dict[str, str],
    previous: Manifest | None,
    with_sidecars: bool,
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

    Returns:
        The current manifest, and existing ``.idx`` files of other origin that contradict the tars.

    Raises:
        RunError: another process has published here in the meantime.
    """
    tars = _named(tars, previous)
    kept = _kept(tars)
    used, accounting = _used(tars, kept), _accounting(tars, kept)
    index = used.select(INDEX.names)
    plan_index = from_index(index, [tar.path for tar in tars], used.column("sample_crc32").to_pylist())
    tables = {"index": index, "accounting": accounting, "scores": SCORES.empty_table()}
    parquets = {name: to_parquet(table) for name, table in tables.items()}
    idx, others = _idx_files(storage, tars, previous) if foreign.uri is None else ([], [])
    manifest = Manifest(
        totals=Totals(
            samples=len(index),
            sources=pc.count_distinct(accounting.column("source")).as_py(),
            duration_s=pc.sum(index.column("duration_s")).as_py() or 0.0,
            clip_bytes=int(media_members(index).size.sum()),
            accounting=count_states(accounting.column("state").to_pylist()),
        ),
        shards=[
            ShardEntry(
                path=tar.path,
                size=tar.size,
                sha256=tar.sha256,
                samples=int(own.sum()),
                qualified=tar.qualified,
            )
            for tar, own in zip(tars, kept, strict=True)
        ],
        files=[],
        config=config,
        versions=versions,
        removals=previous.removals if previous else [],
        foreign=foreign,
    )

    with Scratch("reelweave-publish-") as folder:
        sidecars = energon_files(_energon(tars, kept), Path(folder)) if with_sidecars else {}

        def compose(revision: int) -> tuple[Manifest, dict[str, Payload]]:
            contents: dict[str, Payload] = {
                table_path(name, revision): data for name, data in parquets.items()
            }
            contents |= {plan_path(revision): to_arrow(plan_index), **sidecars}
            files = [entry_of(path, payload) for path, payload in contents.items()]
            return manifest.model_copy(update={"revision": revision, "files": [*files, *idx]}), contents

        return publish_files(storage, compose, previous, Path(folder)), others


def _named(tars: Sequence[TarIndex], previous: Manifest | None) -> list[TarIndex]:
    """Qualify the keys of tars that would repeat others, so that tars that all count from 0 keep every sample.

    Tars of an earlier revision keep their keys; new ones are qualified together or not at all.
    """
    known = {entry.path: entry for entry in previous.shards} if previous else {}
    old = [tar.path in known and known[tar.path].sha256 == tar.sha256 for tar in tars]
    was = [tar.path in known and known[tar.path].qualified for tar in tars]
    fresh = any(entry.qualified for entry in known.values()) or _repeat_each_other(tars, old, was)
    return [
        _qualified(tar) if qualified or (fresh and not settled) else tar
        for tar, settled, qualified in zip(tars, old, was, strict=True)
    ]


def _repeat_each_other(tars: Sequence[TarIndex], old: Sequence[bool], qualified: Sequence[bool]) -> bool:
    """Return whether a key of a new tar also occurs in another tar, among the unqualified ones."""
    plain = [number for number, apart in enumerate(qualified) if not apart]
    usable = [_usable(tars[number]) for number in plain]
    keys = pa.chunked_array(
        [
            tars[number].table.filter(own).column("key").combine_chunks()
            for number, own in zip(plain, usable, strict=True)
        ],
        pa.string(),
    )
    place_N = np.asarray(keys.combine_chunks().dictionary_encode().indices, np.int64)
    tar_N = np.repeat(np.array(plain, np.int64), [own.true_count for own in usable])
    pairs = np.unique(place_N * len(tars) + tar_N)  # each (key, tar) pair once
    in_several = np.bincount(pairs // len(tars), minlength=1) > 1
    new = ~np.array(old, np.bool_)
    return bool((in_several[pairs // len(tars)] & new[pairs % len(tars)]).any())


def _qualified(tar: TarIndex) -> TarIndex:
    key = pc.binary_join_element_wise(qualifier(tar.path), tar.table.column("key"), "")
    place = tar.table.schema.get_field_index("key")
    return replace(tar, table=tar.table.set_column(place, INDEX.field("key"), key), qualified=True)


def _usable(tar: TarIndex) -> pa.BooleanArray:
    return pc.equal(tar.table.column("reason").combine_chunks(), "")


def _kept(tars: Sequence[TarIndex]) -> list[NDArray[np.bool_]]:
    """Return per tar a mask of the rows that become samples: usable, and the first with their key."""
    keys = pa.chunked_array([tar.table.column("key").combine_chunks() for tar in tars], pa.string())
    usable = np.concatenate([np.asarray(_usable(tar)) for tar in tars])
    rows = np.flatnonzero(usable)
    places = keys.take(pa.array(rows)).combine_chunks().dictionary_encode().indices
    kept = np.zeros(len(keys), bool)
    kept[rows[np.unique(np.asarray(places), return_index=True)[1]]] = True
    return np.split(kept, np.cumsum([len(tar.table) for tar in tars])[:-1])


def _used(tars: Sequence[TarIndex], kept: Sequence[NDArray[np.bool_]]) -> pa.Table:
    """Return the rows that become samples, sorted by key."""
    parts = [tar.table.filter(pa.array(own)) for tar, own in zip(tars, kept, strict=True)]
    return pa.concat_tables(parts).sort_by("key").combine_chunks()


def _accounting(tars: Sequence[TarIndex], kept: Sequence[NDArray[np.bool_]]) -> pa.Table:
    """Return one accounting row per sample, and one per damaged tar."""
    parts = []
    for tar, own in zip(tars, kept, strict=True):
        if tar.damage:
            reason = f"the tar {'; it '.join(tar.damage)}"
            row = {"source": tar.path, "state": "failed", "stage": STAGE, "reason": reason}
            parts.append(to_table([row], ACCOUNTING))
        parts.append(_samples_accounting(tar, pa.array(own)))
    return pa.concat_tables(parts).combine_chunks()


def _samples_accounting(tar: TarIndex, kept: pa.BooleanArray) -> pa.Table:
    table = tar.table.combine_chunks()
    key, offset, end_s, reason = (
        table.column(name).combine_chunks() for name in ("key", "offset", "end_s", "reason")
    )
    name = pc.binary_join_element_wise(pa.scalar(tar.path), _plain(tar, key), "/")
    place = pc.binary_join_element_wise(name, offset.cast(pa.string()), " at byte ")
    second = pc.if_else(
        pc.equal(reason, ""), "its key is that of a sample before it in the tar; keys are unique", reason
    )
    nothing = pa.nulls(len(table), pa.float64())
    columns = {
        "source": pc.if_else(kept, name, place),
        "start_s": pc.if_else(kept, 0.0, nothing),
        "end_s": pc.if_else(kept, end_s, nothing),
        "key": pc.if_else(kept, key, pa.nulls(len(table), pa.string())),
        "state": pc.if_else(kept, "kept", "failed"),
        "stage": pa.array([STAGE] * len(table), pa.string()),
        "reason": pc.if_else(kept, "", second),
        "score": nothing,
        "threshold": nothing,
        "duplicate_of": pa.nulls(len(table), pa.string()),
    }
    return pa.Table.from_pydict(columns, schema=ACCOUNTING)


def _energon(tars: Sequence[TarIndex], kept: Sequence[NDArray[np.bool_]]) -> Iterator[EnergonShard]:
    columns = ["key", "offset", "size", "members"]
    for tar, own in zip(tars, kept, strict=True):
        in_tar = np.asarray(pc.greater(tar.table.column("size"), 0))
        whole = tar.whole.select(columns)
        rows = whole.filter(pa.array(own[in_tar]))
        places = np.flatnonzero(own[in_tar]).tolist()
        used = set(rows.column("key").to_pylist())
        # Energon excludes by the key in the tar, so a duplicate of a used key cannot be excluded alone.
        unused = whole.filter(
            pa.array([key not in used for key in whole.column("key").to_pylist()], pa.bool_())
        )
        excluded = _plain(tar, unused.column("key")).to_pylist()
        yield EnergonShard(tar.path, tar.sha256, len(whole), rows, places, "train", excluded)


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
