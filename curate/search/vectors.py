"""Embedding of a clip, stored beside it in a shard."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.dataset import Dataset
from loader.errors import RunError

MEMBER = "video.npy"

_MAX_BYTES = 1 << 20

Vector = NDArray[Any]


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
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError:
        return None
    body = data[file.tell() :]
    if len(shape) != 1 or dtype not in (np.float16, np.float32) or len(body) != shape[0] * dtype.itemsize:
        return None
    vector: Vector = np.frombuffer(body, dtype)
    return vector if len(vector) and np.isfinite(vector).all() else None
