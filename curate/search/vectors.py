"""Embeddings of clips, stored beside them in shards."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.dataset import Dataset
from loader.dataset.tars.joined import joined_members
from loader.dataset.tars.npy_header import npy_header
from loader.errors import RunError
from loader.storage.leases.fenced import unfenced
from loader.storage.local import LocalStorage

MEMBER = "video.npy"

_MAX_BYTES = 1 << 20
_READERS = 16
_REMOTE_GAP, _LOCAL_GAP = 256 << 10, 32 << 10
"""Most bytes between two embeddings that are read together: what a remote storage sends, and a local one reads, in the
time that a request takes."""
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
            f" {len(rows_N) * first.nbytes / 2**30:.1f} GiB, more than the {max_bytes / 2**30:.1f} GiB they may use"
        )
    matrix_ND = np.empty((len(rows_N), len(first)), first.dtype)

    def read(places: NDArray[np.int64]) -> None:
        rows = rows_N[places].tolist()
        for place, row, vector in zip(places.tolist(), rows, _neighbours(dataset, rows), strict=True):
            if vector.shape != first.shape:
                key = dataset.row(row)["key"]
                raise RunError(
                    f"{dataset.storage.root}: {key}.{MEMBER} has {len(vector)} numbers, others have {len(first)}"
                )
            length = float(np.linalg.norm(vector.astype(np.float32)))
            matrix_ND[place] = vector.astype(np.float32) / length if length else 0

    local = isinstance(unfenced(dataset.shard_storage), LocalStorage)
    groups = joined_members(members, rows_N, _LOCAL_GAP if local else _REMOTE_GAP, _MOST_JOINED)
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(read, groups):
            pass
    return matrix_ND


def _neighbours(dataset: Dataset, rows: Sequence[int]) -> list[Vector]:
    """Read the embeddings of samples that lie near each other in one shard, by one request where all are sound.

    Args:
        dataset: finished dataset.
        rows: rows of the index in the order of their offsets.
    """
    members = dataset.members(MEMBER)
    start, size_N = int(members.offset[rows[0]]), members.size[rows]
    if len(rows) > 1 and size_N.max() <= _MAX_BYTES:
        shard = members.shards[members.shard.item(rows[0])]
        stop = int(members.offset[rows[-1]] + size_N[-1])
        try:
            data = dataset.shard_storage.read(shard, start, stop - start)
        except (FileNotFoundError, RunError):
            data = b""
        begin_N = members.offset[rows] - start
        found = [_vector(data[a : a + n]) for a, n in zip(begin_N.tolist(), size_N.tolist(), strict=True)]
        sound = [vector for vector in found if vector is not None]
        if len(sound) == len(rows):
            return sound
    return [stored_vector(dataset, row) for row in rows]  # which names what is wrong


def stored_vector(dataset: Dataset, row_number: int) -> Vector:
    """Read the embedding of the sample in a row of the index, float16 or float32 [D], finite.

    Raises:
        RunError: The embedding is missing or damaged.
    """
    place = dataset.members(MEMBER).place(row_number)
    large = place is not None and place[2] > _MAX_BYTES
    vector = None if large else _vector(dataset.read_member(row_number, MEMBER))
    if vector is None:
        row = dataset.row(row_number)
        raise RunError(
            f"{dataset.storage.uri(row['shard'])}: {row['key']}.{MEMBER} is no vector; run `reelweave verify`"
        )
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
