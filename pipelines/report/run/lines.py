"""JSON lines of runs, live or ended, read in bounded memory."""

import io
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

_BLOCK = 8 << 20  # bytes read at a time
MAX_LINE = 1 << 20  # bytes; longer lines are no records of ours


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file in pieces of some MiB; nothing for what is no file.

    The last line is left out while its newline is missing: a live run is writing it.
    """
    try:
        with open(path, "rb", opener=without_blocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            rest = b""
            while block := file.read(_BLOCK):
                complete, newline, tail = block.rpartition(b"\n")
                if newline:
                    yield rest + complete + newline
                    rest = tail
                elif len(rest) <= MAX_LINE:
                    rest += tail
    except OSError:
        return


def records(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield each line's JSON object; None for a line that is none."""
    for block in blocks(path):
        yield from map(as_record, block.splitlines())


def columns(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables of known fields, and how many lines of each piece were no records.

    Args:
        path: file of JSON lines.
        schema: fields to read; others are ignored, missing ones are null.
    """
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for block in blocks(path):
        try:
            table, wrong = pyarrow.json.read_json(io.BytesIO(block), parse_options=options), 0
        except pa.ArrowInvalid:  # some line of it is damaged
            table, wrong = _table_by_line(block, schema)
        yield table, wrong


def as_record(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for a line that is none."""
    if len(line) > MAX_LINE:
        return None
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def number(value: object) -> float | None:
    """Return a finite number of a record; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _table_by_line(block: bytes, schema: pa.Schema) -> tuple[pa.Table, int]:
    """Return the good lines of a piece, and the number of others."""
    good, wrong = [], 0
    for line in block.splitlines():
        record = as_record(line)
        if record is None:
            wrong += 1
            continue
        good.append({field.name: _cell(record.get(field.name), field.type) for field in schema})
    return pa.Table.from_pylist(good, schema=schema), wrong


def _cell(value: object, kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        inner = value if isinstance(value, dict) else {}
        return {field.name: number(inner.get(field.name)) for field in kind}
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    return number(value)


def without_blocking(path: str, flags: int) -> int:
    """Open a file that may be a pipe without a writer; for ``open``."""
    return os.open(path, flags | os.O_NONBLOCK)
