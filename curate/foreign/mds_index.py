"""``index.json`` of MDS datasets (Mosaic Streaming): its shards, bounded, and refused where they cannot be read."""

import json
import posixpath
import struct
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from reelweave.loader.dataset.tars.mds import MAX_COLUMNS, MAX_NAME_CHARS, MdsColumns, name_columns
from reelweave.loader.dataset.tars.mds_scan import MAX_SHARD_SAMPLES, MdsShard
from reelweave.loader.dataset.tars.tar_scan import MAX_SAMPLE_BYTES
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import ObjectInfo, Storage
from reelweave.loader.storage.names import check_path

MDS_INDEX = "index.json"
MAX_INDEX_BYTES = 256 << 20
MAX_SHARDS = 1_000_000
_VERSION = 2
_MOST_FIRST = 16
"""Samples of a shard, and shards, that are looked at for what columns hold."""
_MOST_FIRST_BYTES = 256 << 20

_UNPACK = {
    "zstd": 'zstd -d "$f"',
    "gz": 'gunzip -k "$f"',
    "bz2": 'bunzip2 -k "$f"',
    "br": 'brotli -d "$f"',
    "snappy": 'python -m snappy -d "$f" "${f%.snappy}"',
}

_Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
_Size = Annotated[int, Field(ge=0, lt=2**40)]


class _File(BaseModel, extra="ignore", strict=True):
    basename: Annotated[str, Field(max_length=1024)]
    bytes: _Size
    hashes: dict[str, str] = {}


class _Entry(BaseModel, extra="ignore", strict=True):
    """Shard of the index; other formats than mds lack the columns."""

    format: str = Field(max_length=MAX_NAME_CHARS)
    version: int
    raw_data: _File
    zip_data: _File | None = None
    compression: str | None = None
    samples: int = Field(ge=0, le=MAX_SHARD_SAMPLES)
    column_names: list[_Name] = Field(default=[], max_length=MAX_COLUMNS)
    column_encodings: list[_Name] = Field(default=[], max_length=MAX_COLUMNS)
    column_sizes: list[Annotated[int, Field(ge=0, lt=2**32)] | None] = Field(
        default=[], max_length=MAX_COLUMNS
    )

    @property
    def layout(self) -> tuple[Any, ...]:
        return (self.column_names, self.column_encodings, self.column_sizes)


def is_mds(listed: Sequence[ObjectInfo]) -> bool:
    """Return whether a folder holds an MDS dataset: files that end in .mds or .mds.COMPRESSION, and their index."""
    names = {info.path for info in listed}
    return MDS_INDEX in names and any(".mds" in posixpath.basename(name) for name in names)


def read_mds_index(
    storage: Storage, listed: Sequence[ObjectInfo], pattern: str = "*"
) -> tuple[list[ObjectInfo], list[str], dict[str, MdsShard]]:
    """Return the shards that ``index.json`` names, as objects; those it does not name; and those it names by path.

    Args:
        storage: folder of the dataset.
        listed: all objects there.
        pattern: pattern of the paths of the shards that are wanted.

    Raises:
        UsageError: the index is no such index, names what lies elsewhere, or its shards are compressed.
        RunError: a shard is missing or of another size, or holds no media.
    """
    where = storage.uri(MDS_INDEX)
    filled = [entry for entry in _entries(storage, where) if entry.samples]
    entries = [entry for entry in filled if fnmatchcase(entry.raw_data.basename, pattern)]
    if not entries:
        matching = f" that matches --shards {pattern}" if filled else ""
        raise UsageError(f"{where} lists no shard with samples{matching}")
    objects = {info.path: info for info in listed}
    layout = entries[0].layout
    for entry in entries:
        _check_entry(entry, where, layout, objects)
    columns = _name_columns(storage, entries)
    shards = {
        path: MdsShard(
            path, entry.raw_data.bytes, entry.samples, entry.raw_data.hashes.get("sha256", ""), columns
        )
        for entry in entries
        for path in [entry.raw_data.basename]
    }
    if len(shards) < len(entries):
        raise UsageError(f"{where} names a shard twice")
    unlisted = sorted(
        path
        for path in objects.keys() - shards.keys()
        if path.endswith(".mds") and fnmatchcase(path, pattern)
    )
    return [objects[path] for path in sorted(shards)], unlisted, shards


def _entries(storage: Storage, where: str) -> list[_Entry]:
    data = storage.read(MDS_INDEX, 0, MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise UsageError(f"{where} is larger than {MAX_INDEX_BYTES >> 20} MiB; no index of MDS shards is")
    try:
        index = json.loads(data)
        listed = index.get("shards") if isinstance(index, dict) else None
        if not isinstance(listed, list) or len(listed) > MAX_SHARDS:
            raise ValueError(f"it has no list of at most {MAX_SHARDS:,} shards")
        if index.get("version", _VERSION) != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        return [_Entry.model_validate(entry) for entry in listed]
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where} is no index of MDS shards: {key}: {first['msg']}") from error
    except RecursionError as error:
        raise UsageError(f"{where} is no index of MDS shards: it is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{where} is no index of MDS shards: {error}") from error


def _check_entry(entry: _Entry, where: str, layout: tuple[Any, ...], objects: dict[str, ObjectInfo]) -> None:
    """Refuse a shard that cannot be read by references.

    Raises:
        UsageError: its format, version or columns are others, its path leads out, or it is compressed.
        RunError: it is missing, or of another size.
    """
    path = entry.raw_data.basename
    if (entry.format, entry.version) != ("mds", _VERSION):
        raise UsageError(
            f"{where}: {path} has format {entry.format}, version {entry.version}; of Mosaic Streaming mds of version 2"
            " is read: write the others as mds (MDSWriter)"
        )
    try:
        check_path(path)
    except UsageError as error:
        raise UsageError(f"{where} names a shard outside of its folder: {error}") from error
    if path not in objects and entry.zip_data is not None:
        command = _UNPACK.get(str(entry.compression).partition(":")[0], "")
        # No name of a stranger's stands in a command that somebody copies.
        how = f"unpack them first, in each folder: for f in *.mds.*; do {command}; done" if command else ""
        raise UsageError(
            f"{where}: the shards are compressed ({entry.compression}), and of a compressed shard no single sample can"
            f" be read; {how or 'write them without compression'}"
        )
    if path not in objects:
        raise RunError(f"{where} names {path}, which is missing; restore it, or take it out of the index")
    if objects[path].size != entry.raw_data.bytes:
        raise RunError(
            f"{path} has {objects[path].size} bytes, and {where} says {entry.raw_data.bytes}; copy the dataset again"
        )
    if entry.layout != layout or len({len(part) for part in layout}) > 1 or not layout[0]:
        raise UsageError(f"{where}: {path} has other columns than the first shard, or none; index them apart")


def _name_columns(storage: Storage, entries: Sequence[_Entry]) -> MdsColumns:
    """Return the columns, named by what the first sample holds whose media are known; others may be empty or damaged.

    Raises:
        RunError: none of the first samples has media.
    """
    first: RunError | None = None
    for uri, sample in _first_samples(storage, entries):
        entry = entries[0]
        try:
            return name_columns(entry.column_names, entry.column_encodings, entry.column_sizes, sample)
        except RunError as error:
            first = first or RunError(f"{uri}: {error}")
    raise first or RunError(f"{storage.uri(MDS_INDEX)} lists no shard whose table of samples can be read")


def _first_samples(storage: Storage, entries: Sequence[_Entry]) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of the first samples of the first shards, each with the address of its shard; bounded."""
    remaining = _MOST_FIRST_BYTES
    for entry in entries[:_MOST_FIRST]:
        path = entry.raw_data.basename
        # The head of a shard: the number of samples, then where each begins and the last one ends.
        table = storage.read(path, 4, 4 * (min(entry.samples, _MOST_FIRST) + 1))
        begins = struct.unpack(f"<{len(table) // 4}I", table[: len(table) // 4 * 4])
        for begin, end in pairwise(begins):
            if remaining <= 0:
                return
            if not 0 <= end - begin <= MAX_SAMPLE_BYTES or end > entry.raw_data.bytes:
                break
            yield storage.uri(path), storage.read(path, begin, end - begin)
            remaining -= end - begin
