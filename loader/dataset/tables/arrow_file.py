"""Arrow files of one record batch with plain columns, read without a copy.

A compressed buffer may state any size, which the decoder would allocate. Our files are never compressed, so a check of
the metadata comes before decoding, and the decoded columns lie within the bytes of the file.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.errors import RunError
from reelweave.loader.storage.steady import refuse_fault

Columns = dict[str, NDArray[np.generic]]

_END = b"ARROW1"
# Field numbers in the tables of Arrow's File.fbs and Message.fbs.
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer
_HEADER = 2  # field of Message
_COMPRESSION = 3  # field of RecordBatch
_CONTINUED = 0xFFFFFFFF  # marker before the length of a message


def read_columns(
    data: Any, kind: str, where: str, schemas: tuple[pa.Schema, ...], rows: int | None = None
) -> Columns:
    """Return the columns [N] of a file by name, as views of its bytes.

    Args:
        data: bytes-like object.
        kind: kind of file, for messages.
        where: file name for messages.
        schemas: permitted schemas, of numeric columns without nulls.
        rows: required number of rows; None accepts any.

    Raises:
        RunError: the file is of another kind.
    """
    buffer = pa.py_buffer(data)
    try:
        _refuse_packed(memoryview(buffer))
        # Threads of pyarrow may outlive the interpreter (docs/notes/arrow.md).
        reader = pa.ipc.open_file(buffer, options=pa.ipc.IpcReadOptions(use_threads=False))
        if reader.schema not in schemas:
            raise RunError(
                f"{where} has other columns than this format: {_printable_names(reader.schema.names)}"
            )
        batch = reader.get_batch(0)
        batch.validate(full=True)
        columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in batch.schema.names}
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        refuse_fault(error, where)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{where} is no {kind}: {reason[:200]}") from error
    if rows is not None and batch.num_rows != rows:
        raise RunError(f"{where} has {batch.num_rows} samples, manifest.json counts {rows}")
    return columns


def _refuse_packed(data: memoryview) -> None:
    """Check that a file contains one uncompressed record batch.

    Raises:
        ValueError: the file contains anything else.
    """
    if len(data) < 20 or data[-len(_END) :] != _END:
        raise ValueError("it does not end as one")
    length = _number(data, len(data) - 10, 4)
    footer = data[max(0, len(data) - 10 - length) : len(data) - 10]
    table = _number(footer, 0, 4)
    if _entries(footer, _field(footer, table, _DICTIONARIES))[1]:
        raise ValueError("it holds dictionaries")
    first, count = _entries(footer, _field(footer, table, _BATCHES))
    if count != 1:
        raise ValueError(f"it holds {count} record batches")
    start, size = _number(footer, first, 8), _number(footer, first + 8, 4)
    message = data[start : start + size]
    message = message[8 if _number(message, 0, 4) == _CONTINUED else 4 :]
    header = _field(message, _number(message, 0, 4), _HEADER)
    if header is None or _field(message, header + _number(message, header, 4), _COMPRESSION) is not None:
        raise ValueError("its columns are compressed")


def _field(data: memoryview, table: int, slot: int) -> int | None:
    """Return the offset of a field of a flatbuffer table; None if absent."""
    layout = table - _number(data, table, 4, signed=True)
    entry = 4 + 2 * slot
    if entry + 2 > _number(data, layout, 2):
        return None
    offset = _number(data, layout + entry, 2)
    return table + offset if offset else None


def _entries(data: memoryview, field: int | None) -> tuple[int, int]:
    """Return the offset of a vector's first entry, and the number of entries."""
    if field is None:
        return 0, 0
    vector = field + _number(data, field, 4)
    return vector + 4, _number(data, vector, 4)


def _number(data: memoryview, at: int, size: int, signed: bool = False) -> int:
    if not 0 <= at <= len(data) - size:
        raise ValueError("it points out of itself")
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def _printable_names(names: list[str]) -> str:
    return ", ".join(name[:40] for name in names[:20])
