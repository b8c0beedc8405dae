"""Files of a dataset that is to be published, made part by part in a temporary folder."""

import sqlite3
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.manifest import (
    FileEntry,
    Manifest,
    Removal,
    ShardEntry,
    Totals,
    count_states,
    plan_path,
    sha256,
    table_path,
)
from reelweave.loader.dataset.plan_index import DTYPES, PLANNED, PlanColumns, PlanIndex, write_plan_index
from reelweave.loader.dataset.publishing.payload import Payload, entry_of
from reelweave.loader.dataset.schema import (
    ACCOUNTING,
    FURTHER_ORDER,
    FURTHER_TABLES,
    INDEX,
    SCORES,
    Row,
)
from reelweave.loader.dataset.shard import ShardRecord, idx_bytes
from reelweave.loader.dataset.tables.parquet import ParquetWriter, to_table
from reelweave.loader.dataset.tables.row_parts import RowParts, hash_parts, part_count
from reelweave.loader.dataset.tables.shard_rows import CRC32, MAYBE_CRC32, as_table
from reelweave.loader.dataset.tars.energon import ENERGON_COLUMNS, EnergonShard, energon_files
from reelweave.loader.errors import RunError

AnyRows: TypeAlias = pa.Table | pa.RecordBatchReader | Sequence[Row]

_SOURCES = pa.schema([ACCOUNTING.field("source")])
_ROWS_AT_ONCE = 1 << 16
_PARTS_OF_UNKNOWN = 64  # of a table that comes by batches
_SAMPLED = 64  # of so many keys of a shard, one is looked at for where parts begin


@dataclass(frozen=True)
class Content:
    """Content of a dataset besides its shards.

    Attributes:
        accounting: table ``accounting``: whole, read once by parts, or as rows.
        scores: table ``scores``, in the same ways.
        config: whole resolved configuration of the dataset.
        versions: versions of code and models, by name.
        removals: take-downs, in order.
        latents: description of the stored latents, if any.
        files: content by path of further files that belong to no sample; paths contain a digest of the content.
        further: tables that a dataset may lack, by name, in the same ways as ``accounting``.
    """

    accounting: AnyRows
    scores: AnyRows = ()
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    removals: list[Removal] = field(default_factory=list)
    latents: Latents | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    further: Mapping[str, AnyRows] = field(default_factory=dict)


def read_once(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return tables as one that is made while it is read."""
    batches = (batch for table in tables for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


@dataclass(frozen=True)
class Publication:
    """Files and manifest of a dataset, before it has the number of its revision.

    Attributes:
        tables: files of the tables by name.
        plan: file of the plan index.
        others: content by path of other files except shards and ``.idx``.
        idx: entries of the ``.idx`` files.
        manifest: manifest without files.
        splits: path and split of each shard.
    """

    tables: Mapping[str, Path]
    plan: Path
    others: Mapping[str, Payload]
    idx: Sequence[FileEntry]
    manifest: Manifest
    splits: Sequence[tuple[str, str]]

    @staticmethod
    def of(folder: Path, shards: Sequence[ShardRecord], content: Content) -> "Publication":
        """Make the files of a dataset.

        Rows are held a part at a time, and 36 bytes of each sample for the plan index.

        Args:
            folder: folder for the files.
            shards: all shards of the dataset, in order.
            content: all other content.

        Raises:
            RunError: two samples share a key.
        """
        index = IndexMaker(shards)
        sidecars: Mapping[str, Payload] = {}
        with RowParts(MAYBE_CRC32, index.parts) as rows:
            divided = index.divide(rows)
            # Where two samples share a key, the index names them with their shards.
            with suppress(sqlite3.IntegrityError):
                sidecars = energon_files(divided, folder)
            index.write(divided, rows, folder)
        states, sources = write_accounting(folder / "accounting.parquet", content.accounting)
        names = ["index", "accounting", "scores"]
        _write_table(folder / "scores.parquet", content.scores, SCORES)
        for name, rows_of_table in content.further.items():
            names.append(name)
            index.write_further(name, rows_of_table, folder / f"{name}.parquet")
        manifest = Manifest(
            totals=Totals(
                samples=index.samples,
                sources=sources,
                duration_s=index.duration_s,
                clip_bytes=index.clip_bytes,
                accounting=count_states(states),
            ),
            shards=[
                ShardEntry(path=shard.path, size=shard.size, sha256=shard.sha256, samples=len(shard.rows))
                for shard in shards
            ],
            files=[],
            config=content.config,
            versions=content.versions,
            removals=content.removals,
            latents=content.latents,
        )
        return Publication(
            {name: folder / f"{name}.parquet" for name in names},
            folder / "plan.arrow",
            {**sidecars, **content.files},
            index.idx,
            manifest,
            index.splits,
        )

    def compose(self, revision: int) -> tuple[Manifest, dict[str, Payload]]:
        """Return the manifest of a revision, and path to content of all files but shards, ``.idx`` and manifest."""
        contents: dict[str, Payload] = {
            **{table_path(name, revision): path for name, path in self.tables.items()},
            plan_path(revision): self.plan,
            **self.others,
        }
        files = [entry_of(path, payload) for path, payload in contents.items()]
        return self.manifest.model_copy(update={"revision": revision, "files": [*files, *self.idx]}), contents


class IndexMaker:
    """Index and plan index of shards, and what the manifest counts of them.

    Args:
        shards: all shards, whose rows are read one after the other.
        schema: columns of the index.
    """

    def __init__(self, shards: Sequence[ShardRecord], schema: pa.Schema = INDEX) -> None:
        self._shards, self._schema = shards, schema
        self.samples = sum(len(shard.rows) for shard in shards)
        self.parts = part_count(self.samples)
        self.idx: list[FileEntry] = []
        self.splits: list[tuple[str, str]] = []
        self.duration_s: float = 0
        self.clip_bytes = 0
        self._checked = True
        self._columns = {name: np.empty(self.samples, dtype) for name, dtype in DTYPES.items()}

    @property
    def _plan_index(self) -> PlanIndex:
        """Plan index of the written index; shards of a dataset without one have no checksums."""
        names = DTYPES if self._checked else PLANNED
        return PlanIndex(**{name: self._columns[name] for name in names})

    def divide(self, rows: RowParts) -> Iterator[EnergonShard]:
        """Divide the rows among parts that follow each other by key, and yield the shards for Energon meanwhile."""
        borders = self._borders()
        for shard in self._shards:
            # The shard's index for tools of tars, and its split.
            table = as_table(shard.rows)
            offsets, sizes = (table.column(name).to_pylist() for name in ("offset", "size"))
            idx = idx_bytes(offsets, offsets[-1] + sizes[-1] if offsets else 0)
            self.idx.append(FileEntry(path=f"{shard.path}.idx", size=len(idx), sha256=sha256(idx)))
            split = table.column("split")[0].as_py() if len(table) else "train"
            self.splits.append((shard.path, split))
            # Rows go to the part that their key falls into. Shards of before checksums have none.
            if len(table):
                if CRC32 not in table.column_names:
                    self._checked = False
                    table = table.append_column(MAYBE_CRC32.field(CRC32), pa.nulls(len(table), pa.uint32()))
                rows.add(table, _part_of(table.column("key"), borders))
            energon_columns = table.select(ENERGON_COLUMNS)
            yield EnergonShard(
                shard.path,
                shard.sha256,
                len(energon_columns),
                energon_columns,
                range(len(energon_columns)),
                split,
            )

    def write(self, divided: Iterator[EnergonShard], rows: RowParts, folder: Path) -> None:
        """Write the index sorted by key, and the plan index.

        Args:
            divided: what is left of `divide`.
            rows: rows by part.
            folder: folder for ``index.parquet`` and ``plan.arrow``.
        """
        deque(divided, maxlen=0)
        columns, first = PlanColumns([shard.path for shard in self._shards]), 0
        with ParquetWriter(folder / "index.parquet", self._schema) as writer:
            for part in range(self.parts):
                table = _sort_table(rows.read(part))
                writer.add(table.select(INDEX.names))
                index_rows = slice(first, first + len(table))
                first = index_rows.stop
                for name, values in columns.of(table).items():
                    self._columns[name][index_rows] = values
                if self._checked:
                    self._columns["crc32"][index_rows] = table.column(CRC32).to_numpy()
                # One after the other: from Python 3.12 on sum() rounds otherwise, so that parts would change the total.
                for duration_s in table.column("duration_s").to_pylist():
                    self.duration_s += duration_s
                self.clip_bytes += _clip_bytes(table)
        write_plan_index(self._plan_index, str(folder / "plan.arrow"))

    def write_further(self, name: str, tables: AnyRows, path: Path) -> None:
        """Write a further table, sorted as `FURTHER_ORDER` has it; of one with keys a part is in memory at a time."""
        schema, order = FURTHER_TABLES[name], FURTHER_ORDER.get(name)
        if order is None:
            _write_table(path, tables, schema)
            return
        borders = self._borders()
        with ParquetWriter(path, schema) as writer, RowParts(schema, self.parts) as rows:
            for table in _tables(tables, schema):
                rows.add(table, _part_of(table.column("key"), borders))
            for part in range(self.parts):
                table = rows.read(part)
                writer.add(table.take(pc.sort_indices(table, [(column, "ascending") for column in order])))

    def _borders(self) -> NDArray[np.object_]:
        """Return the first key of each part but the first one."""
        if self.parts == 1:
            return np.empty(0, np.object_)
        keys = [
            key
            for shard in self._shards
            if len(shard.rows)
            for key in as_table(shard.rows).column("key").to_numpy()[::_SAMPLED]
        ]
        keys.sort()
        return np.array([keys[len(keys) * part // self.parts] for part in range(1, self.parts)], np.object_)


def _part_of(keys: pa.ChunkedArray, borders: NDArray[np.object_]) -> NDArray[np.int64]:
    """Return the part of each key, by the first keys of all parts but the first one."""
    if not len(borders):
        return np.zeros(len(keys), np.int64)
    return np.asarray(np.searchsorted(borders, keys.to_numpy(), side="right"))


def _sort_table(table: pa.Table) -> pa.Table:
    table = table.combine_chunks()
    table = table.take(pc.sort_indices(table.column("key")))
    keys = table.column("key").combine_chunks()
    if len(keys) and (twice := pc.index(pc.equal(keys[1:], keys[:-1]), True).as_py() + 1):
        first, other = (table.column("shard")[row].as_py() for row in (twice - 1, twice))
        raise RunError(f"key {keys[twice]} occurs twice, in {first} and {other}")
    return table


def _clip_bytes(index: pa.Table) -> int:
    members = pc.list_flatten(index.column("members"))
    clips = members.filter(pc.equal(pc.struct_field(members, "suffix"), "mp4"))
    return int(pc.sum(pc.struct_field(clips, "size"), min_count=0).as_py())


def write_accounting(path: Path, rows: AnyRows) -> tuple[Counter[str], int]:
    """Write the accounting, and return its rows by state, and the number of its sources."""
    states: Counter[str] = Counter()
    parts = part_count(len(rows)) if isinstance(rows, pa.Table | Sequence) else _PARTS_OF_UNKNOWN
    with ParquetWriter(path, ACCOUNTING) as writer, RowParts(_SOURCES, parts) as sources:
        for table in _tables(rows, ACCOUNTING):
            writer.add(table)
            counts = pc.value_counts(table.column("state")).to_pylist()
            states.update({count["values"]: count["counts"] for count in counts})
            sources.add(table, hash_parts(table.column("source"), parts))
        columns = (sources.read(part).column("source") for part in range(parts))
        return states, sum(pc.count_distinct(column).as_py() for column in columns)


def _write_table(path: Path, rows: AnyRows, schema: pa.Schema) -> None:
    with ParquetWriter(path, schema) as writer:
        for table in _tables(rows, schema):
            writer.add(table)


def _tables(rows: AnyRows, schema: pa.Schema) -> Iterator[pa.Table]:
    if isinstance(rows, pa.RecordBatchReader):
        for batch in rows:
            yield pa.Table.from_batches([batch])
    else:
        table = rows if isinstance(rows, pa.Table) else to_table(rows, schema)
        for first in range(0, len(table), _ROWS_AT_ONCE):
            yield table.slice(first, _ROWS_AT_ONCE)
