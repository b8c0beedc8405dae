"""Embeddings of clips, stored beside them in shards."""

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.dataset import Dataset
from loader.dataset.npy_header import npy_header
from loader.errors import RunError

MEMBER = "video.npy"

_MAX_BYTES = 1 << 20
_READERS = 16

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
    root, members = dataset.storage.root, dataset.members(MEMBER)
    first = stored_vector(dataset, int(rows_N[0]))
    if len(rows_N) * first.nbytes > max_bytes:
        raise RunError(
            f"the {len(rows_N)} embeddings of {root} take {len(rows_N) * first.nbytes / 2**30:.1f} GiB, more than"
            f" the {max_bytes / 2**30:.1f} GiB they may use"
        )
    matrix_ND = np.empty((len(rows_N), len(first)), first.dtype)

    def read(place: int) -> None:
        vector = stored_vector(dataset, int(rows_N[place]))
        if vector.shape != first.shape:
            key = dataset.row(int(rows_N[place]))["key"]
            raise RunError(f"{root}: {key}.{MEMBER} has {len(vector)} numbers, others have {len(first)}")
        length = float(np.linalg.norm(vector.astype(np.float32)))
        matrix_ND[place] = vector.astype(np.float32) / length if length else 0

    in_shards = np.lexsort((members.offset[rows_N], members.shard[rows_N]))
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(read, in_shards.tolist()):
            pass
    return matrix_ND


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
