"""Plan index, ``plan.arrow``: the columns of every sample for plans and reads, 36 bytes per sample.

It is one uncompressed Arrow record batch, so its columns can be memory-mapped: shared by all processes of a machine,
and paged in on use.
"""

import hashlib
import logging
import mmap
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from reelweave.loader.base.columns import JoinedColumn, parts
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.dataset.manifest import FileEntry
from reelweave.loader.dataset.tables.arrow_file import read_columns
from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.leases.fenced import remove_fence
from reelweave.loader.storage.local import LocalStorage

MAX_BYTES_PER_SAMPLE = 40

DTYPES: Mapping[str, type[np.generic]] = {
    "frames": np.int32,
    "fps": np.float32,
    "height": np.uint16,
    "width": np.uint16,
    "text_tokens": np.int32,
    "shard": np.int32,
    "offset": np.int64,
    "size": np.uint32,
    "crc32": np.uint32,
}
"""Dtypes of the columns, in the order of the file."""

PLANNED = [name for name in DTYPES if name != "crc32"]
"""Columns of ``index.parquet`` copied into the plan index."""

_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in DTYPES.items()]
)
_WITHOUT_CRC32 = pa.schema([_SCHEMA.field(name) for name in PLANNED])
_FRAMING_BYTES = 1 << 16  # upper bound of an Arrow file's metadata; measured: about 2,000
_PART_BYTES = 32 << 20
_READERS = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PlanIndex:
    """Columns [N], one entry per row of ``index.parquet``, in its order.

    Attributes:
        frames: int32, number of frames.
        fps: float32, frames per second.
        height: uint16, pixels.
        width: uint16, pixels.
        text_tokens: int32, tokens of the caption.
        shard: int32, place in ``Manifest.shards``.
        offset: int64, byte offset of the sample in its shard.
        size: uint32, bytes of the sample with headers and padding.
        crc32: uint32, checksum of these bytes (`zlib.crc32`); None if the dataset has none, so that only the index's
            sha256 checks samples.
    """

    frames: NDArray[np.int32]
    fps: NDArray[np.float32]
    height: NDArray[np.uint16]
    width: NDArray[np.uint16]
    text_tokens: NDArray[np.int32]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.uint32]
    crc32: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the present columns by name."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def join_indices(indices: Sequence[PlanIndex], shards: Sequence[int]) -> PlanIndex:
    """Concatenate the plan indices of several datasets; shards are numbered consecutively.

    The columns are not copied, so those of mapped files take no memory.

    Args:
        indices: plan indices; checksums are dropped if one lacks them.
        shards: number of shards of each dataset.
    """
    if len(indices) == 1:
        return indices[0]
    names = [name for name in DTYPES if name != "crc32" or all(index.crc32 is not None for index in indices)]
    before = np.cumsum([0, *shards[:-1]]).tolist()
    columns = {
        name: JoinedColumn([index.columns()[name] for index in indices], before if name == "shard" else None)
        for name in names
    }
    return PlanIndex(**cast(dict[str, Any], columns))


def from_index(index: pa.Table, shards: Sequence[str], crc32: ArrayLike | None = None) -> PlanIndex:
    """Make the plan index of an index.

    Args:
        index: one row per sample, with the columns `PLANNED`.
        shards: paths of the shards, in the order of the manifest.
        crc32: checksum of each row's sample, or None.

    Raises:
        RunError: a value does not fit its column, or a row names an unlisted shard.
    """
    return PlanIndex(
        **cast(dict[str, Any], PlanColumns(shards).of(index)),
        crc32=None if crc32 is None else np.array(crc32, np.uint32),
    )


class PlanColumns:
    """Columns of a plan index, of an index that comes part by part.

    Args:
        shards: paths of the shards, in the order of the manifest.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self._place_of = {path: index for index, path in enumerate(shards)}
        self._rows = 0

    def of(self, index: pa.Table) -> dict[str, NDArray[Any]]:
        """Return the columns `PLANNED` of the next rows; errors as of `from_index`."""
        columns = {name: index.column(name).to_numpy() for name in PLANNED if name != "shard"}
        columns["shard"] = _places(index.column("shard"), self._place_of)
        narrow = {name: _narrow_dtype(name, values, self._rows) for name, values in columns.items()}
        self._rows += len(index)
        return narrow


def write_plan_index(plan_index: PlanIndex, sink: Any) -> None:
    """Write ``plan.arrow`` to a path or a pyarrow stream; equal columns give equal bytes."""
    columns = plan_index.columns()
    schema = _SCHEMA if "crc32" in columns else _WITHOUT_CRC32
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([columns[name] for name in schema.names], schema=schema))


def to_arrow(plan_index: PlanIndex) -> bytes:
    """Return the content of ``plan.arrow``."""
    sink = pa.BufferOutputStream()
    write_plan_index(plan_index, sink)
    return bytes(sink.getvalue())


def from_arrow(data: Any, where: str, samples: int) -> PlanIndex:
    """Parse the content of a ``plan.arrow``; the columns are views of its bytes.

    Args:
        data: bytes-like object.
        where: file name for messages.
        samples: required number of samples.

    Raises:
        RunError: the content is no plan index of this number of samples.
    """
    columns = read_columns(data, "plan index", where, (_SCHEMA, _WITHOUT_CRC32), samples)
    return PlanIndex(**cast(dict[str, Any], columns))


def open_plan_index(
    storage: Storage, entry: FileEntry, samples: int, shards: Sequence[int], node: NodeFiles
) -> PlanIndex:
    """Open the plan index of a dataset as a memory map, after checking its checksum.

    One process of a machine downloads the plan index of a remote dataset for all. If no file can be written, each
    process reads it into memory.

    Args:
        storage: storage of the dataset.
        entry: entry of the manifest.
        samples: number of samples of the dataset.
        shards: size of each shard in bytes, in the order of the manifest.
        node: files shared by this machine's processes, for remote datasets.

    Raises:
        RunError: the file is missing, damaged or of another shape.
    """
    where = storage.uri(entry.path)
    if entry.size > samples * MAX_BYTES_PER_SAMPLE + _FRAMING_BYTES:
        raise RunError(f"{where} has {entry.size} bytes, more than a plan index of {samples} samples takes")
    try:
        if isinstance(remove_fence(storage), LocalStorage):
            with storage.open(entry.path) as file:
                data, sha256 = _map_file(file, entry.size)
        else:
            data, sha256 = _map_copy(storage, entry, node)
    except FileNotFoundError as error:
        raise RunError(f"{where} is missing, but manifest.json lists it") from error
    if sha256 != entry.sha256:
        raise RunError(f"{where} is damaged: its checksum is not the manifest's")
    plan_index = from_arrow(data, where, samples)
    refuse_impossible(plan_index, where, shards)
    if isinstance(data, mmap.mmap):
        data.madvise(
            mmap.MADV_DONTNEED
        )  # pages that were only looked at do not count as the process's memory
    return plan_index


def impossible(plan_index: PlanIndex, where: str, shards: Sequence[int]) -> str | None:
    """Return the first impossible row of a plan index, in words; None if all rows are possible.

    Plans divide by these numbers, and readers seek to these offsets.

    Args:
        plan_index: plan index as read, checked a part at a time.
        where: file name for messages.
        shards: size of each shard in bytes, in the order of the manifest.
    """
    size_S = np.array(shards, np.int64)
    for part in parts(len(plan_index)):
        columns = {name: values[part] for name, values in plan_index.columns().items()}
        bad_n = ~(columns["fps"] > 0) | (columns["fps"] == np.inf) | (columns["text_tokens"] < 0)
        for name in ("frames", "height", "width"):
            bad_n |= columns[name] < 1
        shard_n, offset_n = columns["shard"], columns["offset"]
        bad_n |= (shard_n < 0) | (shard_n >= len(size_S)) | (offset_n < 0)
        if not bad_n.any():
            bad_n = (columns["size"] == 0) | (offset_n > size_S[shard_n] - columns["size"])
        if bad_n.any():
            row = int(np.flatnonzero(bad_n)[0])
            shown = ", ".join(f"{name} {values[row].item()}" for name, values in columns.items())
            return f"{where}: row {part.start + row} cannot be that of a sample in its shard: {shown}"
    return None


def refuse_impossible(plan_index: PlanIndex, where: str, shards: Sequence[int]) -> None:
    """Refuse a plan index with an `impossible` row.

    Raises:
        RunError: a row is impossible.
    """
    if wrong := impossible(plan_index, where, shards):
        raise RunError(f"{wrong}; run `reelweave verify`")


class Comparison:
    """Comparison of a plan index with its index, which comes part by part.

    Args:
        plan_index: plan index as read.
        where: file name for messages.
        shards: paths of the shards, in the order of the manifest.
    """

    def __init__(self, plan_index: PlanIndex, where: str, shards: Sequence[str]) -> None:
        self._own, self._where = plan_index.columns(), where
        self._columns, self._rows = PlanColumns(shards), 0
        self._different: set[str] = set()
        self._fault = ""

    def add(self, index: pa.Table) -> None:
        """Compare the next rows of the index."""
        part = slice(self._rows, self._rows + len(index))
        self._rows = part.stop
        try:
            expected = {} if self._fault else self._columns.of(index)
        except RunError as error:
            self._fault, expected = str(error), {}
        self._different |= {
            name for name, values in expected.items() if not np.array_equal(self._own[name][part], values)
        }

    def problems(self) -> list[str]:
        """Return contradictions in words."""
        if self._fault:
            return [self._fault]
        names = [name for name in PLANNED if name in self._different]
        return [f"{self._where} does not hold what index.parquet says: {', '.join(names)}"] if names else []


def map_plan_index(storage: Storage, entry: FileEntry, where: str, samples: int) -> PlanIndex:
    """Return a plan index whose checksum was compared, mapped if it lies in a folder; errors as of `from_arrow`."""
    if isinstance(remove_fence(storage), LocalStorage) and entry.size:
        with storage.open(entry.path) as file:
            return from_arrow(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), where, samples)
    return from_arrow(storage.read(entry.path, 0, entry.size), where, samples)


def _map_file(file: BinaryIO, size: int) -> tuple[Any, str]:
    """Map a file of the given size and hash it; return no checksum if its size differs."""
    if os.fstat(file.fileno()).st_size != size:
        return b"", ""
    # Hashing through a small buffer, because mapped pages would count as the process's memory.
    sha256 = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
    return (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""), sha256


def _map_copy(storage: Storage, entry: FileEntry, node: NodeFiles) -> tuple[Any, str]:
    """Map this machine's copy; download it if it is missing or damaged."""
    name, stored = f"{entry.sha256}.plan.arrow", (b"", "")
    try:
        for _ in range(2):
            path = node.file(name, lambda path: _fetch(storage, entry, path))
            with path.open("rb") as file:
                stored = _map_file(file, entry.size)
            if stored[1] == entry.sha256:
                break
            node.drop(name)
    except _FetchError as error:
        raise error.cause from error
    except OSError as error:
        _log.warning("each process reads %s by itself: %s", storage.uri(entry.path), error)
        data = storage.read(entry.path, 0, entry.size)
        return data, hashlib.sha256(data).hexdigest()
    return stored


class _FetchError(Exception):
    """Fault of the storage, as opposed to this machine's disk."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _fetch(storage: Storage, entry: FileEntry, path: Path) -> None:
    """Download an object to a local file, several ranges at once."""

    def fetch(start: int) -> None:
        try:
            data = storage.read(entry.path, start, min(_PART_BYTES, entry.size - start))
        except (OSError, RunError) as error:
            raise _FetchError(error) from error
        os.pwrite(file.fileno(), data, start)

    with path.open("xb") as file, ThreadPoolExecutor(_READERS, thread_name_prefix="plan-index") as pool:
        for _ in pool.map(fetch, range(0, entry.size, _PART_BYTES)):
            pass


def _places(column: pa.ChunkedArray, place_of: Mapping[str, int]) -> NDArray[np.int64]:
    names = column.combine_chunks().dictionary_encode()
    unknown = [name for name in names.dictionary.to_pylist() if name not in place_of]
    if unknown:
        raise RunError(f"index.parquet names shard {unknown[0]}, which manifest.json does not list")
    place_U = np.array([place_of[name] for name in names.dictionary.to_pylist()], np.int64)
    name_N: NDArray[np.int32] = names.indices.to_numpy()
    return place_U[name_N]


def _narrow_dtype(name: str, values: NDArray[Any], first: int) -> NDArray[Any]:
    dtype = DTYPES[name]
    if issubclass(dtype, np.integer):
        min_value, max_value = np.iinfo(dtype).min, np.iinfo(dtype).max
        unfit = np.flatnonzero((values < min_value) | (values > max_value))
        if len(unfit):
            row = f"row {first + unfit[0]} of index.parquet"
            raise RunError(f"{row} has {name} {values[unfit[0]]}; a plan takes {min_value} to {max_value}")
    return values.astype(dtype)
