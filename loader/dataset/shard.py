"""Shards: deterministic tars of samples with their ``.idx`` files, and the location of every member."""

import functools
import hashlib
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.dataset.samples.preview import summary, table
from reelweave.loader.dataset.schema import INDEX, MEMBER_ORDER, OPTIONAL, PLACEMENT, Row
from reelweave.loader.dataset.tables.parquet import to_rows, to_table
from reelweave.loader.dataset.tables.shard_rows import as_table
from reelweave.loader.dataset.tars.energon import ENERGON_COLUMNS, EnergonShard
from reelweave.loader.dataset.tars.tar_format import TAR_BLOCK
from reelweave.loader.dataset.tars.tar_samples import read_sample
from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.scratch import Scratch

_NAME_CHARS = 12  # characters of the digest in a shard's name, which distinguish attempts to write it
_OWN = pa.schema([field for field in INDEX if field.name not in PLACEMENT])
MAX_SAMPLE_BYTES = 2**32 - 1  # limit of the plan index; a USTAR header could state twice as much


@dataclass(frozen=True, repr=False)
class Sample:
    """Sample to be written into a shard.

    Attributes:
        row: index columns except the placement, which follows from writing, and ``embeddings``; those of
            ``schema.OPTIONAL`` may be missing.
        clip: encoded clip, KEY.mp4; None if latents replace it.
        embeddings: arrays by suffix, "text.npy", "video.npy", "context.npy" or "latent.npy": an array (float16 or
            float32, any shape), or the bytes of its .npy file.
    """

    row: Row
    clip: bytes | None
    embeddings: Mapping[str, NDArray[Any] | bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return summary(self.row, self.clip, [*self.embeddings])

    def _repr_html_(self) -> str:
        return table(self.row, self.clip, [*self.embeddings])

    def finish(self) -> tuple[Row, list[tuple[str, bytes]]]:
        """Return the whole row except its placement, and (suffix, content) pairs in tar order."""
        arrays = {
            suffix: array if isinstance(array, bytes) else npy_bytes(array)
            for suffix, array in self.embeddings.items()
        }
        digests = {suffix: hashlib.sha256(data).hexdigest() for suffix, data in arrays.items()}
        row = {**OPTIONAL, **self.row, "embeddings": digests}
        content = {"json": _readable_row(row), "txt": row["caption"].encode(), **arrays}
        if self.clip is not None:
            content["mp4"] = self.clip
        return row, [(suffix, content[suffix]) for suffix in MEMBER_ORDER if suffix in content]


@dataclass(frozen=True)
class ShardRecord:
    """Written shard: its manifest entry, and the finished index rows of its samples."""

    path: str
    size: int
    sha256: str
    rows: Sequence[Row]

    @property
    def split(self) -> str:
        """Split of all its samples; "train" for an empty shard."""
        return str(self.rows[0]["split"]) if self.rows else "train"

    @property
    def energon(self) -> EnergonShard:
        """Description of the shard for Energon."""
        rows = as_table(self.rows).select(ENERGON_COLUMNS)
        return EnergonShard(self.path, self.sha256, len(rows), rows, range(len(rows)), self.split)


def shard_path(index: int, sha256: str) -> str:
    """Return the path of a shard inside a dataset, which contains its digest.

    So a writer that lost its lease cannot replace bytes that a manifest refers to.

    Args:
        index: place in the order of writing.
        sha256: hex digest of the tar.
    """
    return f"shards/{index:06d}-{sha256[:_NAME_CHARS]}.tar"


def next_shard_number(shards: Iterable[ShardRecord]) -> int:
    """Return the number after the highest among a dataset's shards, 0 for none."""
    indices = (shard.path.removeprefix("shards/").removesuffix(".tar").partition("-")[0] for shard in shards)
    return 1 + max(map(int, indices), default=-1)


def write_shard(storage: Storage, index: int, samples: Iterable[Sample]) -> ShardRecord:
    """Write samples in the given order to one tar and its ``.idx``; equal input gives equal bytes and names.

    Only one sample is in memory at a time; the tar is assembled in a local temporary file.
    """
    rows: list[Row] = []
    with Scratch("reelweave-shard-") as folder:
        local = Path(folder) / "shard.tar"
        with tarfile.open(local, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in samples:
                rows.append(_add(tar, sample))
            end = tar.offset
        digest = _hash_samples(local, rows)
        path = shard_path(index, digest)
        rows = [{**row, "shard": path} for row in rows]
        storage.write_file(path, local)
        record = ShardRecord(path, local.stat().st_size, digest, rows)
    storage.write(f"{path}.idx", idx_bytes([row["offset"] for row in rows], end))
    return record


def parsed_sample(region: bytes) -> Sample | None:
    """Return a sample from its bytes in a shard; None if they do not hold its whole row, as other writers' may not.

    Raises:
        RunError: the bytes are not those of one sample.
    """
    key, members = read_sample(region)
    try:
        attributes = json.loads(bytes(members["json"]))
        # A table, so that every column has the type of the index.
        [row] = to_rows(to_table([{name: attributes[name] for name in _OWN.names}], _OWN))
        embeddings = {suffix: bytes(members[suffix]) for suffix in row["embeddings"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, pa.ArrowException):
        return None
    if row["key"] != key or any(row[field.name] is None for field in _OWN if not field.nullable):
        return None
    return Sample(row, bytes(members["mp4"]) if "mp4" in members else None, embeddings)


def idx_bytes(offsets: list[int], end: int) -> bytes:
    """Return the content of a ``.tar.idx``: little-endian uint64 offsets of the samples, then the last one's end."""
    return struct.pack(f"<{len(offsets) + 1}Q", *offsets, end)


def _add(tar: tarfile.TarFile, sample: Sample) -> Row:
    key = sample.row["key"]
    start = tar.offset
    members = []
    row, contents = sample.finish()
    for suffix, content in contents:
        if tar.offset + len(content) + 2 * TAR_BLOCK - start > MAX_SAMPLE_BYTES:
            raise RunError(
                f"{key}.{suffix} has {len(content)} bytes; a sample holds 4 GiB: cut shorter clips"
            )
        members.append({"suffix": suffix, "offset": tar.offset + TAR_BLOCK, "size": len(content)})
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size, member.mode, member.uname, member.gname = len(content), 0o644, "reelweave", "reelweave"
        tar.addfile(member, io.BytesIO(content))
    size = tar.offset - start
    return {**row, "offset": start, "size": size, "members": members}


def _hash_samples(local: Path, rows: list[Row]) -> str:
    """Add ``sample_sha256`` and ``sample_crc32`` to each row, and return the digest of the whole file."""
    digest = hashlib.sha256()
    with local.open("rb") as file:
        for row in rows:
            region = file.read(row["size"])
            digest.update(region)
            row["sample_sha256"] = hashlib.sha256(region).hexdigest()
            row["sample_crc32"] = zlib.crc32(region)
        digest.update(file.read())
    return digest.hexdigest()


def _readable_row(row: Row) -> bytes:
    # Maps are sorted, as they are read back from the index, so a rewritten sample has the same bytes.
    ordered = {
        name: dict(sorted(row[name].items())) if isinstance(row[name], dict) else row[name]
        for name in INDEX.names
        if name not in PLACEMENT
    }
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return the content of an array's .npy file."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return _npy_header(array.dtype, array.shape, fortran) + array.tobytes("F" if fortran else "C")


@functools.lru_cache
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    """Return what stands before the elements; numpy takes longer for it than for a small array."""
    if dtype.hasobject:
        raise ValueError("an array of Python objects cannot be stored")
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": fortran, "shape": shape}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
