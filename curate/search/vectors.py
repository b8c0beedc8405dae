"""Embeddings of clips, stored beside them in shards."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.listed import explain_missing
from reelweave.loader.dataset.tars.joined import joined_members
from reelweave.loader.dataset.tars.members import Members
from reelweave.loader.dataset.tars.members import members as located
from reelweave.loader.dataset.tars.npy_header import npy_header
from reelweave.loader.errors import RunError
from reelweave.loader.storage.leases.fenced import remove_fence
from reelweave.loader.storage.local import LocalStorage

MEMBER = "video.npy"

_MAX_BYTES = 1 << 20
_READERS = 16
_REMOTE_GAP, _LOCAL_GAP = 256 << 10, 32 << 10
"""Most bytes between two embeddings that are read together. A remote storage sends as many, and a local one
reads as many, in the time that a request takes.
"""
_MOST_JOINED = 8 << 20

Vector = NDArray[Any]


def stored_vectors(dataset: Dataset, rows_N: NDArray[np.int64], max_bytes: int) -> Vector:
    """Read the embeddings of samples, scaled to unit length, as float16 or float32 [N, D].

    Args:
        dataset: Finished dataset.
        rows_N: Rows of the index with an embedding, at least one.
        max_bytes: Maximum size of the result in memory.

    Raises:
        RunError: An embedding is damaged, or of another size than the first, or all are too large.
    """
    members = dataset.members(MEMBER)
    first = stored_vector(dataset, int(rows_N[0]))
    if len(rows_N) * first.nbytes > max_bytes:
        raise RunError(
            f"the {len(rows_N)} embeddings of {dataset.storage.root} take"
            f" {len(rows_N) * first.nbytes / 2**30:.1f} GiB, more than the {max_bytes / 2**30:.1f} GiB they may use;"
            " make a search index with `reelweave search DATASET --index`"
        )
    return read_vectors(dataset, members, rows_N, 0, first)


def read_vectors(
    dataset: Dataset, members: Members, rows_N: NDArray[np.int64], first_row: int, like: Vector | None
) -> Vector:
    """Read the embeddings of a part of the index, scaled to unit length, as float16 or float32 [N, D].

    Args:
        dataset: Finished dataset.
        members: Locations of the part's embeddings.
        rows_N: Rows of the part with an embedding, at least one.
        first_row: Row of the index with which the part begins.
        like: Vector that all must have the size of; None: the first one.

    Raises:
        RunError: An embedding is damaged, or of another size.
    """
    if like is None:
        [like] = _neighbours(dataset, members, rows_N[:1].tolist(), first_row)
    width = len(like)
    matrix_ND = np.empty((len(rows_N), width), like.dtype)

    # Neighbours in a shard are read together; the threads fill rows of one matrix.
    def read(indices: NDArray[np.int64]) -> None:
        rows = rows_N[indices].tolist()
        vectors = _neighbours(dataset, members, rows, first_row)
        for index, row, vector in zip(indices.tolist(), rows, vectors, strict=True):
            if len(vector) != width:
                key = dataset.rows_at(np.array([first_row + row]), ["key"]).column("key")[0]
                raise RunError(
                    f"{dataset.storage.root}: {key}.{MEMBER} has {len(vector)} numbers, others have {width}"
                )
            length = float(np.linalg.norm(vector.astype(np.float32)))
            matrix_ND[index] = vector.astype(np.float32) / length if length else 0

    # Over the network, to read a gap costs less than another request; on a disk only a small gap does.
    local = isinstance(remove_fence(dataset.shard_storage), LocalStorage)
    groups = joined_members(members, rows_N, _LOCAL_GAP if local else _REMOTE_GAP, _MOST_JOINED)
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(read, groups):
            pass
    return matrix_ND


def _neighbours(dataset: Dataset, members: Members, rows: Sequence[int], first_row: int) -> list[Vector]:
    """Read the embeddings of samples that lie near each other in one shard, by one request where all are sound.

    Args:
        dataset: Finished dataset.
        members: Locations of the embeddings.
        rows: Rows of ``members`` in the order of their offsets.
        first_row: Row of the index of row 0.
    """
    start, size_N = int(members.offset[rows[0]]), members.size[rows]
    if size_N.max() <= _MAX_BYTES:
        shard = members.shards[members.shard.item(rows[0])]
        stop = int(members.offset[rows[-1]] + size_N[-1])
        try:
            data = dataset.shard_storage.read(shard, start, stop - start)
        except (FileNotFoundError, RunError):
            data = b""
        begin_N = members.offset[rows] - start
        vectors = [_vector(data[a : a + n]) for a, n in zip(begin_N.tolist(), size_N.tolist(), strict=True)]
        sound = [vector for vector in vectors if vector is not None]
        if len(sound) == len(rows):
            return sound
    return [stored_vector(dataset, first_row + row) for row in rows]  # which names what is wrong


def stored_vector(dataset: Dataset, row_number: int) -> Vector:
    """Read the embedding of the sample in a row of the index, float16 or float32 [D], finite.

    Raises:
        RunError: The embedding is missing or damaged.
    """
    row = dataset.rows_at(np.array([row_number]), ["key", "shard", "members"])
    location = located(row, MEMBER).place(0)
    data = b""
    if location is not None and location[2] <= _MAX_BYTES:
        with explain_missing(dataset.shard_storage.uri(location[0])):
            data = dataset.shard_storage.read(*location)
        if len(data) != location[2]:
            key = row.column("key")[0]
            raise RunError(
                f"{dataset.shard_storage.uri(location[0])} ends inside {key}: the shard is cut off"
            )
    vector = _vector(data)
    if vector is None:
        shard, key = (row.column(name)[0].as_py() for name in ("shard", "key"))
        raise RunError(f"{dataset.storage.uri(shard)}: {key}.{MEMBER} is no vector; run `reelweave verify`")
    return vector


def _vector(data: bytes) -> Vector | None:
    """Parse a .npy file, or return None; its header never decides an allocation."""
    try:
        file = io.BytesIO(data)
        shape, _, dtype = npy_header(file)
    except ValueError:
        return None
    body = data[file.tell() :]
    if len(shape) != 1 or dtype not in (np.float16, np.float32) or len(body) != shape[0] * dtype.itemsize:
        return None
    vector: Vector = np.frombuffer(body, dtype)
    return vector if len(vector) and np.isfinite(vector).all() else None
