"""Publication of a dataset or a change of one: tables and sidecars first, the manifest last."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from reelweave.loader.base.argument_types import check_protocol, check_type
from reelweave.loader.dataset.history import RevisionHistory, ancestors
from reelweave.loader.dataset.manifest import (
    MANIFEST,
    SEARCH,
    FileEntry,
    Manifest,
    history_path,
    plan_path,
    read_manifest,
    search_folder,
    table_path,
)
from reelweave.loader.dataset.plan_index import from_arrow
from reelweave.loader.dataset.publishing.payload import Payload, create, entry_of, is_there, write
from reelweave.loader.dataset.publishing.publication import Content, Publication
from reelweave.loader.dataset.reader import Dataset
from reelweave.loader.dataset.schema import FURTHER_TABLES, TABLES, Row
from reelweave.loader.dataset.shard import Sample, ShardRecord, write_shard
from reelweave.loader.dataset.tables.parquet import batches_of_parquet
from reelweave.loader.dataset.tars.card import write_card
from reelweave.loader.dataset.tars.energon import energon_files
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.leases.lease import hold_lease
from reelweave.loader.storage.scratch import Scratch

SIDECARS = ".nv-meta/"
_COPIED_BYTES = 1 << 23
_NAMES = (*TABLES, *FURTHER_TABLES)
_TABLE = re.compile(rf"(({'|'.join(_NAMES)})(\.\d{{6}})?\.parquet|(plan|history)(\.\d{{6}})?\.arrow)")


Compose = Callable[[int], tuple[Manifest, Mapping[str, Payload]]]
"""Function from revision number to its manifest, and path to content of its tables and sidecars."""


def publish(
    storage: Storage, shards: Sequence[ShardRecord], content: Content, previous: Manifest | None = None
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
    with Scratch("reelweave-publish-") as folder:
        publication = Publication.of(Path(folder), shards, content)
        if previous is None:
            write_card(storage, publication.splits)
        return publish_files(storage, publication.compose, previous, Path(folder), publication.splits)


def publish_files(
    storage: Storage,
    compose: Compose,
    previous: Manifest | None,
    folder: Path,
    splits: Sequence[tuple[str, str]] = (),
) -> Manifest:
    """Write the files of a manifest other than shards and ``.idx``, then the manifest, in one conditional write.

    Files that a manifest may refer to are never replaced. If another writer left other tables of the same revision, the
    next number is used. Sidecars, whose names Energon prescribes, are written after the new manifest.

    Args:
        storage: storage of the dataset.
        compose: function that makes the manifest of a revision, and path to content of its tables and sidecars.
        previous: manifest to replace, as read; None for a new dataset.
        folder: temporary folder for the history of samples.
        splits: path and split of each shard, for the card; none for a dataset without one.

    Returns:
        The current manifest: the previous one if both have the same content.

    Raises:
        RunError: another process has published here in the meantime.
    """
    for revision in itertools.count(0 if previous is None else previous.revision + 1):
        manifest, contents = compose(revision)
        sidecars = {path: data for path, data in contents.items() if path.startswith(SIDECARS)}
        if previous is not None and _same(manifest, previous):
            settle_files(storage, previous, sidecars, {}, splits)
            return previous
        if previous is not None:
            manifest, contents = _remembering(storage, manifest, contents, previous, folder)
        if all(_placed(storage, path, data) for path, data in contents.items() if _TABLE.fullmatch(path)):
            break
    for path, data in contents.items():
        if path not in sidecars and not _TABLE.fullmatch(path):
            write(storage, path, data)  # its name follows from its content
    if previous is None:
        for path, data in sidecars.items():
            create(storage, path, data)
    data = manifest.to_bytes()
    if previous is None:
        if not storage.create(MANIFEST, data) and storage.read(MANIFEST) != data:
            raise RunError(f"{storage.root} already holds another dataset; choose another place")
        settle_files(storage, manifest, sidecars, contents)
        return manifest
    info = storage.stat(MANIFEST)
    if (
        info is None
        or read_manifest(storage) != previous
        or not storage.replace(MANIFEST, data, info.version)
    ):
        raise RunError(f"{storage.root} was changed by another writer meanwhile; run the same command again")
    settle_files(storage, manifest, sidecars, contents, splits)
    return manifest


def _placed(storage: Storage, path: str, payload: Payload) -> bool:
    """Create the path; return whether it now has this content."""
    return create(storage, path, payload) or is_there(storage, entry_of(path, payload))


def _remembering(
    storage: Storage, manifest: Manifest, contents: Mapping[str, Payload], previous: Manifest, folder: Path
) -> tuple[Manifest, Mapping[str, Payload]]:
    """Add the history of samples, so that streams of earlier revisions can resume."""
    dataset = Dataset(storage)
    if dataset.manifest != previous:
        raise _changed_meanwhile(storage)
    path = plan_path(manifest.revision)
    plan = contents[path]
    data = plan if isinstance(plan, bytes) else pa.memory_map(str(plan)).read_buffer()
    plan_index = from_arrow(data, storage.uri(path), manifest.totals.samples)
    history = dataset.history or RevisionHistory.of(dataset.plan_index, previous.revision)
    before = (table.column("key").combine_chunks() for table in dataset.table_parts("index", ["key"]))
    batches = batches_of_parquet(contents[table_path("index", manifest.revision)], ["key"])
    after = (batch.column("key") for batch in batches)
    grown, path = folder / "history.arrow", history_path(manifest.revision)
    history.with_revision(before, after, plan_index, manifest.revision).write(grown)
    update = {"files": [*manifest.files, entry_of(path, grown)], "ancestors": ancestors(previous)}
    return manifest.model_copy(update=update), {**contents, path: grown}


def settle(dataset: Dataset) -> None:
    """Complete a published change: write the listed sidecars, and remove files of older revisions."""
    storage, manifest = dataset.storage, dataset.manifest
    listed = [entry for entry in manifest.files if entry.path.startswith(SIDECARS)]
    with Scratch("reelweave-settle-") as folder:
        complete = all(is_there(storage, entry) for entry in listed)
        sidecars = (
            {} if complete else energon_files((shard.energon for shard in dataset.shards()), Path(folder))
        )
        settle_files(storage, manifest, sidecars, {}, dataset.splits())


def settle_files(
    storage: Storage,
    manifest: Manifest,
    sidecars: Mapping[str, Payload],
    contents: Mapping[str, Payload],
    splits: Sequence[tuple[str, str]] = (),
) -> None:
    """Complete a change as `settle` does.

    What readers without a manifest follow comes first, and then files of older revisions are removed: killed in
    between, it leaves them an old state, whole. In a folder with tars of other origin only tables are removed.

    Args:
        storage: storage of the dataset.
        manifest: the published manifest.
        sidecars: content of the sidecars by path.
        contents: content of further listed files by path, as far as it is at hand.
        splits: path and split of each shard, for the card; none for a dataset without one.
    """
    for path, data in sidecars.items():
        entry = next(file for file in manifest.files if file.path == path)
        if not is_there(storage, entry):
            write(storage, path, data)
    write_card(storage, splits)
    for path, entry in manifest.named_as_first.items():
        _copy(storage, entry, path, contents.get(entry.path))
    listed = {entry.path for entry in manifest.files} | {entry.path for entry in manifest.shards}
    listed |= manifest.named_as_first.keys()
    prefixes = [
        "plan.",
        "history.",
        *(f"{name}." for name in TABLES),
        # Beside tars of other origin such a name may be that of somebody's own file.
        *([] if manifest.foreign else ["shards/", *(f"{name}." for name in FURTHER_TABLES)]),
    ]
    for prefix in prefixes:
        for item in list(storage.list(prefix)):
            ours = manifest.foreign is None or _TABLE.fullmatch(item.path)
            if ours and item.path not in listed:
                storage.delete(item.path)
    for item in list(storage.list(SEARCH)):  # vectors of samples that may be gone
        if not item.path.startswith(search_folder(manifest.index_sha256)):
            storage.delete(item.path)


def _copy(storage: Storage, entry: FileEntry, path: str, content: Payload | None) -> None:
    """Write a listed file under a further name, unless it is there already."""
    if is_there(storage, FileEntry(path=path, size=entry.size, sha256=entry.sha256)):
        return
    if content is not None:
        write(storage, path, content)
        return
    with storage.open(entry.path) as file:
        storage.write_chunks(path, iter(lambda: file.read(_COPIED_BYTES), b""), entry.size)


def _changed_meanwhile(storage: Storage) -> RunError:
    return RunError(f"{storage.root} was changed by another writer meanwhile; run the same command again")


def _same(first: Manifest, other: Manifest) -> bool:
    """Return whether two manifests have equal content apart from the revision and names derived from it."""

    def essence(manifest: Manifest) -> dict[str, Any]:
        body = manifest.model_dump(exclude={"revision", "files", "ancestors"})
        tables = {name: entry.sha256 for name, entry in manifest.tables.items()}
        return {**body, "tables": tables}

    return essence(first) == essence(other)


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
        check_protocol(storage, "uri", "storage", 'give open_storage("URI") of the new dataset')
        if storage.stat(MANIFEST) is not None:
            raise UsageError(f"{storage.root} already holds a dataset; choose another place")
        self._storage = storage
        self._lease = hold_lease(storage, "DatasetWriter")
        self._max_shard_bytes = max_shard_bytes
        self._config = config or {}
        self._versions = versions or {}
        self._pending: list[Sample] = []
        self._pending_bytes = 0
        self._shards: list[ShardRecord] = []
        self._accounting: list[Row] = []

    def add(self, sample: Sample) -> None:
        """Add a kept sample and its accounting row."""
        check_type(sample, Sample, "sample", "give a Sample")
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
