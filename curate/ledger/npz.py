"""Reading of .npz files of many small arrays: numpy parses each header as Python, which takes longer than the data."""

import functools
import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SUFFIX = ".npy"
_MAGIC_BYTES = 8


def read_npz(data: bytes, select: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file whose key is wanted, by key. They cannot be written to.

    Raises:
        ValueError: the file holds something else than arrays, or an array of Python objects; other exceptions of
            `zipfile` and `numpy` for damaged files.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {member.filename.removesuffix(_SUFFIX): member for member in file.infolist()}
        return {key: _array(_content(file, data, member)) for key, member in members.items() if select(key)}


def _content(file: zipfile.ZipFile, data: bytes, member: zipfile.ZipInfo) -> memoryview:
    """Return the content of a member; zipfile takes longer to open one than to read it."""
    start = member.header_offset
    if member.compress_type != zipfile.ZIP_STORED or data[start : start + 4] != b"PK\3\4":
        return memoryview(file.read(member))
    name, extra = (int.from_bytes(data[start + at : start + at + 2], "little") for at in (26, 28))
    start += 30 + name + extra
    content = memoryview(data)[start : start + member.file_size]
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    return content


def _array(data: memoryview) -> NDArray[Any]:
    version = np.lib.format.read_magic(io.BytesIO(data[:_MAGIC_BYTES]))
    first = _MAGIC_BYTES + (2 if version == (1, 0) else 4)
    start = first + int.from_bytes(data[_MAGIC_BYTES:first], "little")
    shape, fortran, dtype = _header(bytes(data[_MAGIC_BYTES:start]), version)
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
