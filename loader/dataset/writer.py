"""Publication of a dataset or a change of one: tables and sidecars first, the manifest last."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loader.dataset.history import RevisionHistory, ancestors
from loader.dataset.latents import Latents
from loader.dataset.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Removal,
    ShardEntry,
    Totals,
    count_states,
    history_path,
    plan_path,
    read_manifest,
    sha256,
    table_path,
)
from loader.dataset.plan_index import from_arrow, from_index, to_arrow
from loader.dataset.reader import Dataset
from loader.dataset.schema import ACCOUNTING, INDEX, SCORES, TABLES, Row
from loader.dataset.shard import Sample, ShardRecord, idx_bytes, write_shard
from loader.dataset.tables.parquet import from_parquet, to_parquet, to_table
from loader.dataset.tables.shard_rows import CRC32, as_table
from loader.dataset.tars.card import write_card
from loader.dataset.tars.energon import energon_files
from loader.errors import RunError, UsageError
from loader.storage.base import Storage
from loader.storage.leases.lease import leased

SIDECARS = ".nv-meta/"
_TABLE = re.compile(rf"(({'|'.join(TABLES)})(\.\d{{6}})?\.parquet|(plan|history)(\.\d{{6}})?\.arrow)")


Compose = Callable[[int], tuple[Manifest, Mapping[str, bytes]]]
"""Function from revision number to its manifest, and path to content of its tables and sidecars."""


@dataclass(frozen=True)
class Content:
    """Content of a dataset besides its shards.

    Attributes:
        accounting: table ``accounting``, or its rows.
        scores: table ``scores``, or its rows.
        config: whole resolved configuration of the dataset.
        versions: versions of code and models, by name.
        removals: take-downs, in order.
        latents: description of the stored latents, if any.
        files: content by path of further files that belong to no sample; paths contain a digest of the content.
    """

    accounting: pa.Table | Sequence[Row]
    scores: pa.Table | Sequence[Row] = ()
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    removals: list[Removal] = field(default_factory=list)
    latents: Latents | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def publish(
    storage: Storage, shards: list[ShardRecord], content: Content, previous: Manifest | None = None
) -> Manifest:
    """Publish written shards as a dataset, or as its next revision: tables first, then ``manifest.json``.

    A single conditional write creates or replaces the manifest; before it readers see the old state, after it the new
    one.

    Args:
        storage: storage that contains the shards; new ones under names that no earlier revision used.
        shards: all shards of the dataset, in order.
        content: all other content.
        previous: manifest to replace, as read; None for a new dataset.

    Raises:
        RunError: two samples share a key, or another process has published here in the meantime.
    """
    if previous is not None and read_manifest(storage) != previous:
        raise _changed_meanwhile(storage)
    if previous is None:
        write_card(storage, [shard.energon for shard in shards])
    manifest = publish_files(storage, lambda revision: _composed(shards, content, revision), previous)
    if previous is not None:
        write_card(storage, [shard.energon for shard in shards])
    return manifest


def publish_files(storage: Storage, compose: Compose, previous: Manifest | None) -> Manifest:
    """Write the files of a manifest other than shards and ``.idx``, then the manifest, in one conditional write.

    Files that a manifest may refer to are never replaced. If another writer left other tables of the same revision, the
    next number is used. Sidecars, whose names Energon prescribes, are written after the new manifest.

    Args:
        storage: storage of the dataset.
        compose: function that makes the manifest of a revision, and path to content of its tables and sidecars.
        previous: manifest to replace, as read; None for a new dataset.

    Returns:
        The current manifest: the previous one if both have the same content.

    Raises:
        RunError: another process has published here in the meantime.
    """
    for revision in itertools.count(0 if previous is None else previous.revision + 1):
        manifest, contents = compose(revision)
        sidecars = {path: data for path, data in contents.items() if path.startswith(SIDECARS)}
        if previous is not None and _same(manifest, previous):
            settle_files(storage, previous, sidecars)
            return previous
        if previous is not None:
            manifest, contents = _remembering(storage, manifest, contents, previous)
        if all(_placed(storage, path, data) for path, data in contents.items() if _TABLE.fullmatch(path)):
            break
    for path, data in contents.items():
        if path not in sidecars and not _TABLE.fullmatch(path):
            storage.write(path, data)  # its name follows from its content
    if previous is None:
        for path, data in sidecars.items():
            storage.create(path, data)
    data = manifest.to_bytes()
    if previous is None:
        if not storage.create(MANIFEST, data) and storage.read(MANIFEST) != data:
            raise RunError(f"{storage.root} already holds another dataset; choose another place")
        settle_files(storage, manifest, sidecars)
        return manifest
    info = storage.stat(MANIFEST)
    if (
        info is None
        or read_manifest(storage) != previous
        or not storage.replace(MANIFEST, data, info.version)
    ):
        raise RunError(f"{storage.root} was changed by another writer meanwhile; run the same command again")
    settle_files(storage, manifest, sidecars)
    return manifest


def _placed(storage: Storage, path: str, data: bytes) -> bool:
    """Create the path; return whether it now has this content."""
    if storage.create(path, data):
        return True
    found = storage.stat(path)
    return found is not None and found.size == len(data) and storage.read(path) == data


def _remembering(
    storage: Storage, manifest: Manifest, contents: Mapping[str, bytes], previous: Manifest
) -> tuple[Manifest, Mapping[str, bytes]]:
    """Add the history of samples, so that streams of earlier revisions can resume."""
    dataset = Dataset(storage)
    if dataset.manifest != previous:
        raise _changed_meanwhile(storage)
    keys = from_parquet(contents[table_path("index", manifest.revision)], ["key"]).column("key")
    path = plan_path(manifest.revision)
    plan_index = from_arrow(contents[path], storage.uri(path), manifest.totals.samples)
    history = dataset.history or RevisionHistory.of(dataset.plan_index, previous.revision)
    data = history.grown(dataset.read_column("key"), keys, plan_index, manifest.revision).to_arrow()
    path = history_path(manifest.revision)
    entry = FileEntry(path=path, size=len(data), sha256=sha256(data))
    update = {"files": [*manifest.files, entry], "ancestors": ancestors(previous)}
    return manifest.model_copy(update=update), {**contents, path: data}


def settle(storage: Storage, manifest: Manifest, shards: list[ShardRecord]) -> None:
    """Complete a published change: write the listed sidecars, and remove files of older revisions."""
    settle_files(storage, manifest, energon_files(shard.energon for shard in shards))
    write_card(storage, [shard.energon for shard in shards])


def settle_files(storage: Storage, manifest: Manifest, sidecars: Mapping[str, bytes]) -> None:
    """Complete a change as `settle` does, with the content of the sidecars by path.

    In a folder with tars of other origin, only tables of older revisions are removed.
    """
    for path, data in sidecars.items():
        entry = next(file for file in manifest.files if file.path == path)
        found = storage.stat(path)
        if found is None or found.size != entry.size or sha256(storage.read(path)) != entry.sha256:
            storage.write(path, data)
    listed = {entry.path for entry in manifest.files} | {entry.path for entry in manifest.shards}
    prefixes = [
        "plan.",
        "history.",
        *(f"{name}." for name in TABLES),
        *([] if manifest.foreign else ["shards/"]),
    ]
    for prefix in prefixes:
        for item in list(storage.list(prefix)):
            ours = manifest.foreign is None or _TABLE.fullmatch(item.path)
            if ours and item.path not in listed:
                storage.delete(item.path)


def _changed_meanwhile(storage: Storage) -> RunError:
    return RunError(f"{storage.root} was changed by another writer meanwhile; run the same command again")


def _same(one: Manifest, other: Manifest) -> bool:
    """Return whether two manifests have equal content apart from the revision and names derived from it."""

    def essence(manifest: Manifest) -> dict[str, Any]:
        body = manifest.model_dump(exclude={"revision", "files", "ancestors"})
        tables = {name: manifest.table(name).sha256 for name in TABLES}
        return {**body, "tables": tables}

    return essence(one) == essence(other)


def _composed(
    shards: list[ShardRecord], content: Content, revision: int
) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and path to content of every file except shards, ``.idx`` files and the manifest."""
    tables = [as_table(shard.rows) for shard in shards]
    index, crc32 = _sorted(tables)
    plan_index = from_index(index, [shard.path for shard in shards], crc32)
    accounting = _table(content.accounting, ACCOUNTING)
    contents = {
        table_path("index", revision): to_parquet(index),
        table_path("accounting", revision): to_parquet(accounting),
        table_path("scores", revision): to_parquet(_table(content.scores, SCORES)),
        plan_path(revision): to_arrow(plan_index),
        **energon_files(shard.energon for shard in shards),
        **content.files,
    }
    files = [FileEntry(path=path, size=len(data), sha256=sha256(data)) for path, data in contents.items()]
    for shard, table in zip(shards, tables, strict=True):
        offsets, sizes = (table.column(name).to_pylist() for name in ("offset", "size"))
        idx = idx_bytes(offsets, offsets[-1] + sizes[-1] if offsets else 0)
        files.append(FileEntry(path=f"{shard.path}.idx", size=len(idx), sha256=sha256(idx)))
    members = pc.list_flatten(index.column("members"))
    clips = members.filter(pc.equal(pc.struct_field(members, "suffix"), "mp4"))
    states = pc.value_counts(accounting.column("state")).to_pylist()
    manifest = Manifest(
        revision=revision,
        totals=Totals(
            samples=index.num_rows,
            sources=pc.count_distinct(accounting.column("source")).as_py(),
            duration_s=sum(index.column("duration_s").to_pylist()),
            clip_bytes=pc.sum(pc.struct_field(clips, "size"), min_count=0).as_py(),
            accounting=count_states({one["values"]: one["counts"] for one in states}),
        ),
        shards=[
            ShardEntry(path=shard.path, size=shard.size, sha256=shard.sha256, samples=len(shard.rows))
            for shard in shards
        ],
        files=files,
        config=content.config,
        versions=content.versions,
        removals=content.removals,
        latents=content.latents,
    )
    return manifest, contents


def _sorted(tables: Sequence[pa.Table]) -> tuple[pa.Table, NDArray[np.uint32] | None]:
    """Return the index of shards' rows, sorted by key, and the checksums of its samples, or None.

    Shards of a dataset without a plan index have no checksums.
    """
    filled = [table for table in tables if table.num_rows]
    checked = all(CRC32 in table.column_names for table in filled)
    if not filled:
        return to_table([], INDEX), np.zeros(0, np.uint32)
    names = [*INDEX.names, *([CRC32] if checked else [])]
    table = pa.concat_tables([one.select(names) for one in filled]).combine_chunks()
    table = table.take(pc.sort_indices(table.column("key")))
    keys = table.column("key").combine_chunks()
    if twice := pc.index(pc.equal(keys[1:], keys[:-1]), True).as_py() + 1:
        one, other = (table.column("shard")[row].as_py() for row in (twice - 1, twice))
        raise RunError(f"key {keys[twice]} occurs twice, in {one} and {other}")
    return table.select(INDEX.names), table.column(CRC32).to_numpy() if checked else None


def _table(rows: pa.Table | Sequence[Row], schema: pa.Schema) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else to_table(rows, schema)


class DatasetWriter:
    """Writer of single samples into shards, which publishes at a clean exit of its ``with`` block.

    It is meant for a single process; curation writes shards in parallel with ``write_shard`` and ``publish``. Nothing
    becomes visible if the block ends in an exception.

    Args:
        storage: empty storage for the dataset.
        max_shard_bytes: size at which a shard is closed before the next sample; a larger sample has its own shard.
        config: configuration for the manifest.
        versions: versions for the manifest.
    """

    def __init__(
        self,
        storage: Storage,
        max_shard_bytes: int = 256 * 2**20,
        config: dict[str, Any] | None = None,
        versions: dict[str, str] | None = None,
    ) -> None:
        if storage.stat(MANIFEST) is not None:
            raise UsageError(f"{storage.root} already holds a dataset; choose another place")
        self._storage = storage
        self._lease = leased(storage, "DatasetWriter")
        self._max_shard_bytes = max_shard_bytes
        self._config = config or {}
        self._versions = versions or {}
        self._pending: list[Sample] = []
        self._pending_bytes = 0
        self._shards: list[ShardRecord] = []
        self._accounting: list[Row] = []

    def add(self, sample: Sample) -> None:
        """Add a kept sample and its accounting row."""
        clip_bytes = len(sample.clip or b"")
        if self._pending and self._pending_bytes + clip_bytes > self._max_shard_bytes:
            self._flush()
        self._pending.append(sample)
        self._pending_bytes += clip_bytes
        row = sample.row
        self._accounting.append(
            {name: row.get(name) for name in ("source", "start_s", "end_s", "key")}
            | {"state": "kept", "stage": "write", "reason": ""}
        )

    def account(self, rows: Iterable[Row]) -> None:
        """Add accounting rows of spans and sources without a sample."""
        self._accounting.extend(rows)

    def __enter__(self) -> Self:
        self._storage = self._lease.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                content = Content(self._accounting, config=self._config, versions=self._versions)
                publish(self._storage, self._shards, content)
        finally:
            self._lease.__exit__(None, None, None)

    def _flush(self) -> None:
        if self._pending:
            self._shards.append(write_shard(self._storage, len(self._shards), self._pending))
        self._pending, self._pending_bytes = [], 0
