"""Reading of .npz files of many small arrays: numpy parses each header as Python, which takes longer than the data."""

import functools
import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SUFFIX = ".npy"


def read_npz(data: bytes, wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file whose key is wanted, by key. They cannot be written to.

    Raises:
        ValueError: the file holds something else than arrays, or an array of Python objects; other exceptions of
            `zipfile` and `numpy` for damaged files.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        names = {name.removesuffix(_SUFFIX): name for name in file.namelist()}
        return {key: _array(file.read(name)) for key, name in names.items() if wanted(key)}


def _array(data: bytes) -> NDArray[Any]:
    version = np.lib.format.read_magic(file := io.BytesIO(data))
    width = 2 if version == (1, 0) else 4
    start = file.tell() + width + int.from_bytes(data[file.tell() : file.tell() + width], "little")
    shape, fortran, dtype = _header(data[file.tell() : start], version)
    flat = np.frombuffer(data, dtype, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


@functools.lru_cache
def _header(header: bytes, version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of the elements; few headers occur, many times."""
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(header))
    if dtype.hasobject:
        raise ValueError("it holds Python objects, and allow_pickle is false")
    return shape, fortran, dtype
