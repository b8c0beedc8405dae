"""Dataset reader: a mapped plan index, tables, and one range read per clip."""

import os
import zlib
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.argument_types import check_protocol, whole_number
from reelweave.loader.base.arrays import IndexArray, numbers
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.dataset.history import RevisionHistory
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.listed import explain_missing
from reelweave.loader.dataset.manifest import MANIFEST, Manifest, history_path, sha256
from reelweave.loader.dataset.plan_index import (
    PLANNED,
    PlanIndex,
    from_index,
    open_plan_index,
    refuse_impossible,
)
from reelweave.loader.dataset.samples.clip import TrainingSample, training_sample
from reelweave.loader.dataset.schema import PLACEMENT, Row
from reelweave.loader.dataset.shard import Sample, ShardRecord, parsed_sample
from reelweave.loader.dataset.tables.row_columns import RowColumns
from reelweave.loader.dataset.tables.rows_by_shard import RowsByShard
from reelweave.loader.dataset.tables.shard_rows import TableRows
from reelweave.loader.dataset.tables.table_reader import TableReader
from reelweave.loader.dataset.tars.mds import MdsColumns, mds_key
from reelweave.loader.dataset.tars.members import Members, join_members, media_members, members
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import Storage, StorageConfig, open_storage

NAME_CHARS = 16
"""Characters of a fingerprint that suffice to name a revision of a dataset."""


class Dataset(TableReader):
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
        check_protocol(storage, "uri", "storage", 'open a dataset by its path with open_dataset("URI")')
        super().__init__(storage, without)
        self.shard_storage: Storage = shard_storage(storage, self.manifest, config)
        self.node = NodeFiles(None if config is None else config.node_folder)
        self._members: dict[str, Members] = {}

    def __getstate__(self) -> dict[str, object]:
        names = ("storage", "shard_storage", "node", "manifest", "without")
        return {**{name: getattr(self, name) for name in names}, "_members": {}}

    def __len__(self) -> int:
        return self.manifest.totals.samples

    def __getitem__(self, row_number: int) -> Sample:
        """Return the sample in a row of the index, by one range read; negative numbers count from the last row.

        Raises:
            UsageError: the number is none, such as a key or a range.
            IndexError: there is no such row.
            RunError: its bytes are not those the index promises.
        """
        row = whole_number(
            row_number,
            "the row",
            "give its number; dataset.row_number(key) is that of a key, and of a range each row is read",
        )
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.storage.root} has {len(self)} samples, and none in row {row}")
        row %= len(self)
        sample = self.sample(row)
        # Tars of others may hold pictures, or videos of another suffix.
        return sample if self.manifest.foreign is None else replace(sample, clip=self.read_media(row))

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

    @property
    def has_clips(self) -> bool:
        """False if clips were left out where latents are stored."""
        return self.latents is None or bool(self.manifest.config.get("latents", {}).get("clips", True))

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
    def plan_index(self) -> PlanIndex:
        """Plan index by row of the index, which is read only if ``plan.arrow`` is missing."""
        entry, shards = self.manifest.plan_index, self.manifest.shards
        samples, sizes = self.manifest.totals.samples, [shard.size for shard in shards]
        if entry is not None:
            with self.same_revision():
                return open_plan_index(self.storage, entry, samples, sizes, self.node)
        plan_index = from_index(self._table("index", PLANNED, check=False), [shard.path for shard in shards])
        refuse_impossible(plan_index, self.storage.uri(self.manifest.table("index").path), sizes)
        return plan_index

    def splits(self) -> list[tuple[str, str]]:
        """Return path and split of each shard, in the order of the manifest; "train" for an empty one."""
        split_of: dict[str, str] = {}
        for table in self.table_parts("index", ("shard", "split")):
            rows = table.group_by("shard", use_threads=False).aggregate([("split", "first")])
            split_of |= zip(
                rows.column("shard").to_pylist(), rows.column("split_first").to_pylist(), strict=True
            )
        return [(shard.path, split_of.get(shard.path, "train")) for shard in self.manifest.shards]

    @cached_property
    def history(self) -> RevisionHistory | None:
        """History of earlier revisions; None if there is none."""
        path = history_path(self.manifest.revision)
        entry = next((file for file in self.manifest.files if file.path == path), None)
        if entry is None:
            return None
        history = RevisionHistory.from_arrow(self._file(entry), self.storage.uri(path))
        if (held := history.count(self.manifest.revision)) != self.manifest.totals.samples:
            raise RunError(
                f"{self.storage.uri(path)} has {held} samples of revision {self.manifest.revision}, manifest.json"
                f" counts {self.manifest.totals.samples}; restore it from a copy"
            )
        return history

    def revision_of(self, fingerprint: str) -> int | None:
        """Return the number of the current or earlier revision by a fingerprint's beginning; None if unknown."""
        if len(fingerprint) < NAME_CHARS:
            return None
        if self.fingerprint.startswith(fingerprint):
            return self.manifest.revision
        ancestors = reversed(self.manifest.ancestors)
        return next(
            (ancestor.revision for ancestor in ancestors if ancestor.index_sha256.startswith(fingerprint)),
            None,
        )

    def fingerprint_of(self, revision: int) -> str | None:
        """Return the fingerprint of the current or an earlier revision by its number; None if unknown."""
        if revision == self.manifest.revision:
            return self.fingerprint
        ancestors = reversed(self.manifest.ancestors)
        return next((ancestor.index_sha256 for ancestor in ancestors if ancestor.revision == revision), None)

    def plan_index_of(self, revision: int) -> PlanIndex:
        """Return the plan index of a revision known to `revision_of`."""
        if self.history is None or revision == self.manifest.revision:
            return self.plan_index
        return self.history.plan_index(revision)

    def rows_after(self, revision: int, later: int) -> IndexArray:
        """Map each row of a revision to its row in a later one, int64 [N]; -1 for removed samples."""
        if self.history is None or revision == later:
            return np.arange(len(self.plan_index_of(revision)))
        return self.history.rows_after(revision, later)

    def shards(self) -> list[ShardRecord]:
        """Return every shard with its index rows, in the order of the manifest and of the tars.

        Rows of a large index lie in a temporary folder, which is removed with the shards. They are read by parts, so
        that reading the shards in order is fast.
        """
        rows, first = RowsByShard(self.manifest.shards), 0
        for table in self.table_parts("index"):
            rows.add(table, self.plan_index.crc32, first)
            first += len(table)
        return [
            ShardRecord(entry.path, entry.size, entry.sha256, TableRows(partial(rows.table, index), count))
            for index, (entry, count) in enumerate(
                zip(self.manifest.shards, rows.counts.tolist(), strict=True)
            )
        ]

    def sample(self, row_number: int) -> Sample:
        """Read a whole sample by one range read, for writing it into another shard.

        Of a large dataset the row is read from the sample, too: the index would give a row group for each.

        Raises:
            RunError: the bytes contradict the index.
        """
        plan = None if self._at_once or self.manifest.foreign is not None else self.plan_index
        if plan is None or plan.crc32 is None:
            return self.sample_of(self.row(row_number))
        where = self.shard_uri(shard := plan.shard.item(row_number))
        with explain_missing(where):
            region = self.read_range(shard, plan.offset.item(row_number), plan.size.item(row_number))
        try:
            self._refuse_damaged(row_number, region)
            sample = parsed_sample(region)
        except RunError as error:
            raise RunError(
                f"{where}: sample {self.key(row_number)}: {error}; run `reelweave verify`"
            ) from error
        return sample or self.sample_of(self.row(row_number))

    def sample_of(self, row: Row) -> Sample:
        """Read the whole sample of a row of the index; errors as of `sample`."""
        with explain_missing(self.shard_storage.uri(row["shard"])):
            region = self.shard_storage.read(row["shard"], row["offset"], row["size"])
        if sha256(region) != row["sample_sha256"]:
            raise RunError(
                f"{self.shard_storage.uri(row['shard'])}: sample {row['key']} is damaged; run `reelweave verify`"
            )
        content = {}
        for member in row["members"]:
            start = member["offset"] - row["offset"]
            content[member["suffix"]] = region[start : start + member["size"]]
        fields = {name: value for name, value in row.items() if name not in PLACEMENT}
        embeddings = {suffix: content[suffix] for suffix in row["embeddings"]}
        return Sample(fields, content.get("mp4"), embeddings)

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
        return join_members(map(media_members, self._parts("index")))

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

    def dataset_of(self, row_number: int) -> int:  # noqa: ARG002 - as `Blend` has it
        """Return 0, the number of a dataset without a blend."""
        return 0

    def describe(self, row_numbers: IndexArray) -> pa.Table:
        """Return the columns `reelweave.loader.dataset.tables.row_columns.ROW_COLUMNS` of some rows, in their order."""
        return self._row_columns.take(row_numbers)

    @cached_property
    def _row_columns(self) -> RowColumns:
        return RowColumns(self.node, self.fingerprint, partial(self.table_parts, "index"))

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
        """Check and parse all bytes of the sample in a row.

        Raises:
            RunError: the bytes contradict the index, or contain no clip.
        """
        self._refuse_damaged(row_number, region)
        clip = training_sample(region, self.manifest.foreign is not None, self._mds)
        shard = self.manifest.shards[self.plan_index.shard.item(row_number)]
        if self._mds is not None:
            clip = clip._replace(key=mds_key(shard.path, self.plan_index.offset.item(row_number)))
        prefix = shard.key_prefix
        return clip._replace(key=f"{prefix}{clip.key}") if prefix else clip

    @cached_property
    def _mds(self) -> MdsColumns | None:
        return self.manifest.mds

    def _refuse_damaged(self, row_number: int, region: bytes | memoryview) -> None:
        crc32_N = self.plan_index.crc32
        if crc32_N is not None:
            intact = zlib.crc32(region) == crc32_N.item(row_number)
        else:
            intact = sha256(region) == self._sample_sha256[row_number].as_py()
        if not intact:
            raise RunError("it is damaged: its bytes are not those whose checksum the dataset holds")

    @cached_property
    def _sample_sha256(self) -> pa.ChunkedArray:
        return self.column("sample_sha256")

    def members(self, suffix: str) -> Members:
        """Return the locations of the members with a suffix; computed once."""
        if suffix not in self._members:
            self._members[suffix] = join_members(members(part, suffix) for part in self._parts("index"))
        return self._members[suffix]

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """Return every sample once, as each epoch draws; see `reelweave.loader.blend.source.SampleSource`."""
        del seed  # every epoch is one whole pass
        rows_D = numbers(len(self.plan_index)) if lengths_N is None else np.flatnonzero(lengths_N)
        return Draws.once(rows_D, epoch)

    def _read(self, members: Members, row_number: int, what: str) -> bytes:
        member = members.place(row_number)
        if member is None:
            row = self.row(row_number)
            raise RunError(f"sample {row['key']} in {row['shard']} has no member {what}")
        shard, offset, size = member
        with explain_missing(self.shard_storage.uri(shard)):
            data = self.shard_storage.read(shard, offset, size)
        if len(data) != size:
            key = self.row(row_number)["key"]
            raise RunError(f"{self.shard_storage.uri(shard)} ends inside {key}: the shard is cut off")
        return data


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
        RunError: a remote dataset names a place that permissions refuse (`reelweave.loader.storage.reach.permissions`).
    """
    if manifest.foreign is None or manifest.foreign.uri is None:
        return storage
    try:
        return open_storage(manifest.foreign.uri, config or StorageConfig(), storage.uri(MANIFEST))
    except UsageError as error:
        raise RunError(f"{storage.root} has its tars elsewhere: {error}") from error
