"""Publishing a dataset: tables and sidecars first, the manifest last."""

import itertools
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from loader.dataset.energon import energon_files
from loader.dataset.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    ShardEntry,
    Totals,
    count_states,
    sha256,
)
from loader.dataset.schema import ACCOUNTING, INDEX, Row
from loader.dataset.shard import Sample, ShardRecord, idx_bytes, shard_path, write_shard
from loader.dataset.tables import to_parquet
from loader.errors import RunError, UsageError
from loader.storage.base import Storage


def publish(
    storage: Storage,
    shards: list[ShardRecord],
    accounting: list[Row],
    config: dict[str, Any],
    versions: dict[str, str],
) -> Manifest:
    """Makes written shards a dataset: index, accounting, sidecars, then ``manifest.json``.

    Args:
        storage: where the shards lie already.
        shards: in shard order.
        accounting: rows of ``accounting.parquet``.
        config: the whole resolved configuration the dataset was made with.
        versions: of code and models, by name.

    Raises:
        RunError: two samples share a key, or another writer published a dataset here.
    """
    rows = sorted((row for shard in shards for row in shard.rows), key=lambda row: row["key"])
    for one, other in itertools.pairwise(rows):
        if one["key"] == other["key"]:
            raise RunError(f"key {one['key']} occurs twice, in {one['shard']} and {other['shard']}")
    contents = {
        "index.parquet": to_parquet(rows, INDEX),
        "accounting.parquet": to_parquet(accounting, ACCOUNTING),
        **energon_files(shards),
    }
    for path, data in contents.items():
        storage.write(path, data)
    files = [FileEntry(path=path, size=len(data), sha256=sha256(data)) for path, data in contents.items()]
    for shard in shards:
        end = shard.rows[-1]["offset"] + shard.rows[-1]["size"] if shard.rows else 0
        idx = idx_bytes([row["offset"] for row in shard.rows], end)
        files.append(FileEntry(path=f"{shard.path}.idx", size=len(idx), sha256=sha256(idx)))
    manifest = Manifest(
        totals=Totals(
            samples=len(rows),
            sources=len({row["source"] for row in accounting}),
            duration_s=sum(row["duration_s"] for row in rows),
            clip_bytes=sum(
                member["size"] for row in rows for member in row["members"] if member["suffix"] == "mp4"
            ),
            accounting=count_states([row["state"] for row in accounting]),
        ),
        shards=[
            ShardEntry(path=shard.path, size=shard.size, sha256=shard.sha256, samples=len(shard.rows))
            for shard in shards
        ],
        files=files,
        config=config,
        versions=versions,
    )
    data = manifest.to_bytes()
    if not storage.create(MANIFEST, data) and storage.read(MANIFEST) != data:
        raise RunError(f"{storage.root} already holds another dataset; choose another place")
    return manifest


class DatasetWriter:
    """Writes samples one by one into shards and publishes on a clean exit from its ``with`` block.

    For a single process; the pipeline writes shards in parallel with ``write_shard`` and ``publish``.
    Nothing becomes visible when the block ends in an exception.

    Args:
        storage: an empty place for the dataset.
        max_shard_bytes: a shard closes before a sample would make it larger (one larger sample gets its own).
        config: kept in the manifest.
        versions: kept in the manifest.
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
        self._max_shard_bytes = max_shard_bytes
        self._config = config or {}
        self._versions = versions or {}
        self._pending: list[Sample] = []
        self._pending_bytes = 0
        self._shards: list[ShardRecord] = []
        self._accounting: list[Row] = []

    def add(self, sample: Sample) -> None:
        """Adds a kept sample and its accounting row."""
        if self._pending and self._pending_bytes + len(sample.clip) > self._max_shard_bytes:
            self._flush()
        self._pending.append(sample)
        self._pending_bytes += len(sample.clip)
        row = sample.row
        self._accounting.append(
            {name: row.get(name) for name in ("source", "start_s", "end_s", "key")}
            | {"state": "kept", "stage": "write", "reason": ""}
        )

    def account(self, rows: Iterable[Row]) -> None:
        """Adds accounting rows of spans and sources that gave no sample."""
        self._accounting.extend(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        self._flush()
        publish(self._storage, self._shards, self._accounting, self._config, self._versions)

    def _flush(self) -> None:
        if self._pending:
            path = shard_path(len(self._shards))
            self._shards.append(write_shard(self._storage, path, self._pending))
        self._pending, self._pending_bytes = [], 0
