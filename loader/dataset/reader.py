"""Dataset reader: a mapped plan index, tables in memory, and one range read per clip."""

import operator
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loader.base.arrays import Places, numbers
from loader.base.node_files import NodeFiles
from loader.dataset.draws import Draws
from loader.dataset.history import RevisionHistory
from loader.dataset.latents import Latents
from loader.dataset.listed import check_listed, explained, read_listed
from loader.dataset.manifest import MANIFEST, FileEntry, Manifest, history_path, read_manifest, sha256
from loader.dataset.plan_index import (
    PLANNED,
    PlanIndex,
    from_index,
    open_plan_index,
    refuse_impossible,
)
from loader.dataset.samples.clip import TrainingSample, training_sample
from loader.dataset.schema import INDEX, PLACEMENT, TABLES, Row
from loader.dataset.shard import Sample, ShardRecord
from loader.dataset.tables.checks import TableChecks, problems, row_count
from loader.dataset.tables.parquet import (
    GROUP_ROWS,
    find_sorted,
    read_batches,
    read_rows,
    read_table,
    to_rows,
)
from loader.dataset.tables.rows_by_shard import RowsByShard
from loader.dataset.tables.shard_rows import TableRows
from loader.dataset.tars.members import Members, joined, media_members, members
from loader.errors import RunError, UsageError
from loader.storage import Storage, StorageConfig, open_storage

_ROWS_AROUND = 1 << 15

NAME_CHARS = 16
"""Characters of a fingerprint that suffice to name a revision of a dataset."""


class Dataset:
    """Finished dataset; picklable, with tables read again in the receiving process.

    Args:
        storage: storage of the dataset.
        config: configuration for tars in another storage, and for files of this machine.
        without: columns of the index that are not read.

    Attributes:
        storage: storage of the dataset.
        node: files shared by the processes of this machine.
        shard_storage: storage of the tars, which differs for an index over tars of other origin elsewhere.
        manifest: content of ``manifest.json``.
    """

    def __init__(
        self, storage: Storage, config: StorageConfig | None = None, without: Collection[str] = ()
    ) -> None:
        self.storage, self.without = storage, frozenset(without)
        self.manifest: Manifest = read_manifest(storage)
        self.shard_storage: Storage = shard_storage(storage, self.manifest, config)
        self.node = NodeFiles(None if config is None else config.node_folder)
        self._members: dict[str, Members] = {}
        self._around: tuple[int, pa.Table] = (
            0,
            INDEX.empty_table(),
        )  # rows near the last one that was asked for

    def __getstate__(self) -> dict[str, object]:
        names = ("storage", "shard_storage", "node", "manifest", "without")
        return {
            **{name: getattr(self, name) for name in names},
            "_members": {},
            "_around": (0, INDEX.empty_table()),
        }

    def __len__(self) -> int:
        return self.manifest.totals.samples

    def __getitem__(self, row_number: int) -> Sample:
        """Return the sample in a row of the index, by one range read; negative numbers count from the last row.

        Raises:
            IndexError: there is no such row.
            RunError: its bytes are not those the index promises.
        """
        number = operator.index(row_number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.storage.root} has {len(self)} samples, and none in row {number}")
        number %= len(self)
        sample = self.sample(number)
        # Tars of others may hold pictures, or videos of another suffix.
        return sample if self.manifest.foreign is None else replace(sample, clip=self.read_media(number))

    def __repr__(self) -> str:
        totals = self.manifest.totals
        return (
            f"Dataset({self.storage.root!r}, revision {self.manifest.revision}: {totals.samples:,} samples,"
            f" {totals.duration_s / 3600:,.2f} h, {len(self.manifest.shards):,} shards)"
        )

    @property
    def fingerprint(self) -> str:
        """Checksum of the index, which determines the whole content."""
        return self.manifest.index_sha256

    @property
    def latents(self) -> Latents | None:
        """Description of the stored latents; None if there are none."""
        return self.manifest.latents

    def latent_files(self) -> dict[str, bytes]:
        """Return the content by path of the files that belong to the latents but to no sample.

        Raises:
            RunError: a file is missing or damaged.
        """
        if self.latents is None or self.latents.text is None:
            return {}
        [entry] = [entry for entry in self.manifest.files if entry.path == self.latents.text.empty]
        return {entry.path: self._file(entry)}

    @cached_property
    def index(self) -> pa.Table:
        """Content of ``index.parquet``: one row per sample, sorted by key (``loader.dataset.schema.INDEX``).

        It is read whole; of a large one `table_parts`, `column`, `rows_at` and `row` read what is asked for.
        """
        return self._table(
            "index", [name for name in INDEX.names if name not in self.without] if self.without else None
        )

    @cached_property
    def plan_index(self) -> PlanIndex:
        """Plan index by row of the index, which is read only if ``plan.arrow`` is missing."""
        entry, shards = self.manifest.plan_index, self.manifest.shards
        samples, sizes = self.manifest.totals.samples, [shard.size for shard in shards]
        if entry is not None:
            return open_plan_index(self.storage, entry, samples, sizes, self.node)
        found = from_index(self._table("index", PLANNED, check=False), [shard.path for shard in shards])
        refuse_impossible(found, self.storage.uri(self.manifest.table("index").path), sizes)
        return found

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the index; that of a large index is read each time."""
        if self._at_once and name not in self.without:
            return self.index.column(name)
        return self.read_columns("index", [name]).column(name)

    def rows_where(self, name: str, column: str, value: str) -> list[Row]:
        """Return the rows of a table with a value in a column, with maps as dicts; arguments as of `table_parts`."""
        return [
            row
            for table in self._parts(name)
            for row in to_rows(table.filter(pc.equal(table.column(column), value)))
        ]

    def _parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the checked rows of a table, in order; a small one is kept."""
        rows = row_count(name, self.manifest) or row_count("accounting", self.manifest)
        small = rows is not None and rows <= GROUP_ROWS
        return iter([getattr(self, name)]) if small or name in self.__dict__ else self.table_parts(name)

    def read_columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of a table, without the others and without keeping them; arguments as of `table_parts`."""
        empty = pa.schema([TABLES[name].field(column) for column in columns]).empty_table()
        # Pages have their own checksums; the file's checksum would need all of its bytes.
        return pa.concat_tables([empty, *self.table_parts(name, columns)])

    def table_parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read a table by parts, in its order, without keeping them; whole rows are checked on the way.

        Args:
            name: "index", "accounting" or "scores".
            columns: columns to read; None for all.

        Raises:
            RunError: the table is damaged, or contradicts itself or the manifest.
        """
        entry = self.manifest.table(name)
        where, rows = self.storage.uri(entry.path), row_count(name, self.manifest)
        checks = TableChecks(name, where, self.manifest) if columns is None else None
        if checks is not None:
            check_listed(self.storage, entry, where)
        with explained(where), self.storage.open(entry.path) as file:
            for batch in read_batches(file, entry.size, where, TABLES[name], rows, columns):
                table = pa.Table.from_batches([batch])
                if checks is not None:
                    checks.add(table)
                if checks is None or not checks.wrong:
                    yield table
        if checks is not None:
            _refuse(checks.problems())

    def splits(self) -> list[tuple[str, str]]:
        """Return path and split of each shard, in the order of the manifest; "train" for an empty one."""
        found: dict[str, str] = {}
        for table in self.table_parts("index", ("shard", "split")):
            rows = table.group_by("shard", use_threads=False).aggregate([("split", "first")])
            found |= zip(
                rows.column("shard").to_pylist(), rows.column("split_first").to_pylist(), strict=True
            )
        return [(shard.path, found.get(shard.path, "train")) for shard in self.manifest.shards]

    def row_number(self, key: str) -> int | None:
        """Return the row of the index with a key; None if there is none.

        Of a large index only the keys of one row group are read.
        """
        if self._at_once:
            return self.row_numbers.get(key)
        entry = self.manifest.table("index")
        with explained(where := self.storage.uri(entry.path)), self.storage.open(entry.path) as file:
            return find_sorted(file, where, "key", key)

    def rows_at(self, row_numbers: Places, columns: Sequence[str]) -> pa.Table:
        """Return some columns of some rows of the index; of a large index only their row groups are read.

        Args:
            row_numbers: int64 [n], rows of the index in any order.
            columns: names of the columns.
        """
        if self._at_once and self.without.isdisjoint(columns):
            return self.index.select(columns).take(pa.array(row_numbers))
        entry = self.manifest.table("index")
        with explained(where := self.storage.uri(entry.path)), self.storage.open(entry.path) as file:
            return read_rows(file, where, row_numbers, columns)

    @property
    def _at_once(self) -> bool:
        """True if the index is small, or was read before."""
        return self.manifest.totals.samples <= GROUP_ROWS or "index" in self.__dict__

    @cached_property
    def history(self) -> RevisionHistory | None:
        """History of earlier revisions; None if there is none."""
        path = history_path(self.manifest.revision)
        entry = next((file for file in self.manifest.files if file.path == path), None)
        if entry is None:
            return None
        found = RevisionHistory.from_arrow(self._file(entry), self.storage.uri(path))
        if (held := found.count(self.manifest.revision)) != self.manifest.totals.samples:
            raise RunError(
                f"{self.storage.uri(path)} has {held} samples of revision {self.manifest.revision}, manifest.json"
                f" counts {self.manifest.totals.samples}; restore it from a copy"
            )
        return found

    def revision_of(self, fingerprint: str) -> int | None:
        """Return the number of the current or earlier revision by a fingerprint's beginning; None if unknown."""
        if len(fingerprint) < NAME_CHARS:
            return None
        if self.fingerprint.startswith(fingerprint):
            return self.manifest.revision
        known = reversed(self.manifest.ancestors)
        return next((one.revision for one in known if one.index_sha256.startswith(fingerprint)), None)

    def plan_index_of(self, revision: int) -> PlanIndex:
        """Return the plan index of a revision known to `revision_of`."""
        if self.history is None or revision == self.manifest.revision:
            return self.plan_index
        return self.history.plan_index(revision)

    def rows_after(self, revision: int, later: int) -> Places:
        """Map each row of a revision to its row in a later one, int64 [N]; -1 for removed samples."""
        if self.history is None or revision == later:
            return np.arange(len(self.plan_index_of(revision)))
        return self.history.rows_after(revision, later)

    @cached_property
    def accounting(self) -> pa.Table:
        """Content of ``accounting.parquet``: one row per span (``loader.dataset.schema.ACCOUNTING``)."""
        return self._table("accounting")

    @cached_property
    def scores(self) -> pa.Table:
        """Content of ``scores.parquet``: one row per clip that was cut (``loader.dataset.schema.SCORES``)."""
        return self.read_scores()

    def read_scores(self) -> pa.Table:
        """Read `scores` without keeping them: their maps are the largest column of all tables."""
        return self._table("scores")

    @cached_property
    def row_numbers(self) -> dict[str, int]:
        """Number of the index row by key."""
        return {key: number for number, key in enumerate(self.column("key").to_pylist())}

    def row(self, row_number: int) -> Row:
        """Return one row of the index, with maps as dicts; of a large one the rows around it are kept for the next."""
        first, held = (0, self.index) if self._at_once else self._around
        if not first <= row_number < first + len(held):
            first = row_number - row_number % _ROWS_AROUND
            rows = np.arange(first, min(first + _ROWS_AROUND, len(self)))
            held = self.rows_at(rows, [name for name in INDEX.names if name not in self.without])
            self._around = first, held
        return to_rows(held.slice(row_number - first, 1))[0]

    def shards(self) -> list[ShardRecord]:
        """Return every shard with its index rows, in the order of the manifest and of the tars.

        Rows of a large index lie in a temporary folder, which is removed with the shards; they are read by parts, so
        that shards one after the other are read fast.
        """
        rows, first = RowsByShard(self.manifest.shards), 0
        for table in self.table_parts("index"):
            rows.add(table, self.plan_index.crc32, first)
            first += len(table)
        return [
            ShardRecord(entry.path, entry.size, entry.sha256, TableRows(partial(rows.table, number), count))
            for number, (entry, count) in enumerate(
                zip(self.manifest.shards, rows.counts.tolist(), strict=True)
            )
        ]

    def sample(self, row_number: int) -> Sample:
        """Read a whole sample by one range read, for writing it into another shard.

        Raises:
            RunError: the bytes contradict the index.
        """
        return self.sample_of(self.row(row_number))

    def sample_of(self, row: Row) -> Sample:
        """Read the whole sample of a row of the index; errors as of `sample`."""
        with explained(self.shard_storage.uri(row["shard"])):
            region = self.shard_storage.read(row["shard"], row["offset"], row["size"])
        if sha256(region) != row["sample_sha256"]:
            raise RunError(
                f"{self.shard_storage.uri(row['shard'])}: sample {row['key']} is damaged; run `reelweave verify`"
            )
        content = {}
        for member in row["members"]:
            start = member["offset"] - row["offset"]
            content[member["suffix"]] = region[start : start + member["size"]]
        own = {name: value for name, value in row.items() if name not in PLACEMENT}
        embeddings = {suffix: content[suffix] for suffix in row["embeddings"]}
        return Sample(own, content.get("mp4"), embeddings)

    def read_member(self, row_number: int, suffix: str) -> bytes:
        """Read one member of a sample by one range read.

        Raises:
            RunError: the sample has no such member, or its shard ends before it.
        """
        return self._read(self.members(suffix), row_number, suffix)

    def read_media(self, row_number: int) -> bytes:
        """Read the encoded video or image of a sample by one range read.

        Raises:
            RunError: the sample has none, or its shard ends before it.
        """
        return self._read(self.media, row_number, "with pictures")

    @cached_property
    def media(self) -> Members:
        """Locations of all samples' videos or images, of any suffix."""
        return joined(map(media_members, self._parts("index")))

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard, by its place in the manifest; fewer if the shard ends before.

        Raises:
            FileNotFoundError: the shard does not exist.
        """
        return self.shard_storage.read(self.manifest.shards[shard].path, offset, size)

    def shard_uri(self, shard: int) -> str:
        """Return the URI of a shard, for messages."""
        return self.shard_storage.uri(self.manifest.shards[shard].path)

    def key(self, row_number: int) -> str:
        """Return the key of the sample in a row."""
        return str(self.rows_at(np.array([row_number]), ["key"]).column("key")[0])

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
        """Check and parse all bytes of the sample in a row.

        Raises:
            RunError: the bytes contradict the index, or contain no clip.
        """
        crc32_N = self.plan_index.crc32
        if crc32_N is not None:
            intact = zlib.crc32(region) == crc32_N.item(row_number)
        else:
            intact = sha256(region) == self._sample_sha256[row_number].as_py()
        if not intact:
            raise RunError("it is damaged: its bytes are not those whose checksum the dataset holds")
        clip = training_sample(region, foreign=self.manifest.foreign is not None)
        prefix = self.manifest.shards[self.plan_index.shard.item(row_number)].key_prefix
        return clip._replace(key=f"{prefix}{clip.key}") if prefix else clip

    @cached_property
    def _sample_sha256(self) -> pa.ChunkedArray:
        return self.column("sample_sha256")

    def members(self, suffix: str) -> Members:
        """Return the locations of the members with a suffix; computed once."""
        if suffix not in self._members:
            self._members[suffix] = joined(members(part, suffix) for part in self._parts("index"))
        return self._members[suffix]

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """Return every sample once, as each epoch draws; see `loader.blend.source.SampleSource`."""
        del seed  # every epoch is one whole pass
        rows_D = numbers(len(self.plan_index)) if lengths_N is None else np.flatnonzero(lengths_N)
        return Draws.once(rows_D, epoch)

    def _read(self, places: Members, row_number: int, what: str) -> bytes:
        found = places.place(row_number)
        if found is None:
            row = self.row(row_number)
            raise RunError(f"sample {row['key']} in {row['shard']} has no member {what}")
        shard, offset, size = found
        with explained(self.shard_storage.uri(shard)):
            data = self.shard_storage.read(shard, offset, size)
        if len(data) != size:
            key = self.row(row_number)["key"]
            raise RunError(f"{self.shard_storage.uri(shard)} ends inside {key}: the shard is cut off")
        return data

    def _table(self, name: str, columns: Sequence[str] | None = None, check: bool = True) -> pa.Table:
        entry = self.manifest.table(name)
        where, rows = self.storage.uri(entry.path), row_count(name, self.manifest)
        table = read_table(self._file(entry), entry.size, where, TABLES[name], rows, columns)
        if check:
            _refuse(problems(name, table, where, self.manifest))
        return table

    def _file(self, entry: FileEntry) -> bytes:
        return read_listed(self.storage, entry, self.storage.uri(entry.path))


def _refuse(problems: Iterator[str]) -> None:
    if wrong := next(problems, None):
        raise RunError(f"{wrong}; run `reelweave verify` for all that is wrong")


def open_dataset(
    uri: str | os.PathLike[str], storage_config: StorageConfig | None = None, without: Collection[str] = ()
) -> Dataset:
    """Open the finished dataset at a folder or ``s3://`` prefix; arguments as of `Dataset`.

    Raises:
        RunError: the dataset does not exist, or its manifest is damaged.
    """
    config = storage_config or StorageConfig()
    return Dataset(open_storage(uri, config), config, without)


def shard_storage(storage: Storage, manifest: Manifest, config: StorageConfig | None = None) -> Storage:
    """Return the storage of a dataset's tars.

    Raises:
        RunError: a remote dataset names a place that permissions refuse (`loader.storage.reach.permissions`).
    """
    if manifest.foreign is None or manifest.foreign.uri is None:
        return storage
    try:
        return open_storage(manifest.foreign.uri, config or StorageConfig(), storage.uri(MANIFEST))
    except UsageError as error:
        raise RunError(f"{storage.root} has its tars elsewhere: {error}") from error
