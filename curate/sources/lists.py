"""Parsing of source lists (txt, csv, jsonl and parquet), one entry after the other."""

import csv
import datetime
import decimal
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from loader.errors import UsageError, first_line
from loader.text import first_text

LIST_SUFFIXES = frozenset((".txt", ".csv", ".jsonl", ".parquet"))
PATH_COLUMNS = ("path", "video", "source", "url")
MAX_LINE_BYTES = 1 << 20
MAX_PATH_CHARS = 16_384
MAX_CAPTION_CHARS = 64_000
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_CHARS = 4000
MAX_NAME_CHARS = 100

_SPELLINGS = {"license": "licence"}
_PARQUET_ROWS = 4096

_Record = Mapping[str, Any]


@dataclass(frozen=True)
class ListEntry:
    """One source in a source list.

    Attributes:
        path: Path as spelled in the list.
        caption: Caption in the list, or None.
        attributes: All further columns as text; any spelling of a licence column becomes "licence".
    """

    path: str
    caption: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InvalidEntry:
    """Entry of a list that names no source.

    Attributes:
        place: Line or entry, such as "line 7".
        reason: Reason, worded to follow the place.
    """

    place: str
    reason: str


def read_list(file: BinaryIO, name: str) -> Iterator[ListEntry | InvalidEntry]:
    """Yield the entries of the list in ``file`` in order; memory is bounded by one entry, or one batch of parquet rows.

    The path of an entry is its first filled column of `PATH_COLUMNS`, its caption the column ``caption``.
    Further columns are cut at `MAX_ATTRIBUTE_CHARS`; binary and large nested values are left out.

    Args:
        file: File open for reading.
        name: Name of the list, for messages; its suffix decides the format.

    Raises:
        UsageError: The file is no list of its format.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".txt":
        for number, line in enumerate(_lines(file), 1):
            if isinstance(line, InvalidEntry):
                yield line
            elif line.strip() and not line.startswith("#"):
                yield _checked(ListEntry(line.strip()), f"line {number}")
        return
    readers = {".csv": _csv_records, ".jsonl": _jsonl_records, ".parquet": _parquet_records}
    for number, record in enumerate(readers[suffix](file, name), 1):
        yield record if isinstance(record, InvalidEntry) else _entry(record, f"entry {number}")


def _lines(file: BinaryIO) -> Iterator[str | InvalidEntry]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES)
            yield InvalidEntry(f"line {number}", f"has more than {MAX_LINE_BYTES} bytes; shorten it")
            continue
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n") + "\n"
        except UnicodeDecodeError:
            yield InvalidEntry(f"line {number}", "is no UTF-8 text; save it as UTF-8")


def _csv_records(file: BinaryIO, name: str) -> Iterator[_Record | InvalidEntry]:
    wrong: list[InvalidEntry] = []

    def lines() -> Iterator[str]:
        for line in _lines(file):
            if isinstance(line, InvalidEntry):
                wrong.append(line)
            yield line if isinstance(line, str) else "\n"

    rows = csv.DictReader(lines())  # cells beyond the first line come under None; columns may have no name
    try:
        heads = rows.fieldnames
    except csv.Error as error:
        raise UsageError(f"list {name}, line {rows.reader.line_num} is no CSV: {error}") from error
    if wrong or not heads:
        reason = f"{wrong[0].place} {wrong[0].reason}" if wrong else "line 1 names no columns"
        raise UsageError(f"list {name}, {reason}")
    while True:
        place = f"line {rows.reader.line_num + 1}"
        try:
            row: _Record | InvalidEntry | None = next(rows, None)
        except csv.Error as error:
            row = InvalidEntry(place, f"is no CSV: {error}")
        yield from wrong
        wrong.clear()
        if row is None:
            return
        if not isinstance(row, InvalidEntry) and None in row:
            place = f"line {rows.line_num}"
            row = InvalidEntry(place, "has more cells than the first line; quote text with commas")
        yield row


def _jsonl_records(file: BinaryIO, name: str) -> Iterator[_Record | InvalidEntry]:  # noqa: ARG001
    for number, line in enumerate(_lines(file), 1):
        if isinstance(line, InvalidEntry):
            yield line
        elif line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield InvalidEntry(f"line {number}", f"is no JSON: {error}")
                continue
            wrong = InvalidEntry(f"line {number}", 'is no object like {"path": "..."}')
            yield record if isinstance(record, dict) else wrong


def _parquet_records(file: BinaryIO, name: str) -> Iterator[_Record | InvalidEntry]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        table = pq.ParquetFile(file, pre_buffer=False)  # or all bytes that were read stay in memory
        names = [column.name for column in table.schema_arrow if _is_plain(pa, column.type)]
        for batch in table.iter_batches(_PARQUET_ROWS, columns=names):
            try:
                rows: list[_Record | InvalidEntry] = batch.to_pylist()
            except (ValueError, OverflowError):  # text that is no UTF-8, a date out of range
                rows = [_parquet_row(batch.slice(row, 1), number + row + 1) for row in range(len(batch))]
            number += len(rows)
            yield from rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"list {name} is no readable parquet file: {first_line(error)}") from error


def _parquet_row(row: Any, number: int) -> _Record | InvalidEntry:
    try:
        found: _Record = row.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return InvalidEntry(f"entry {number}", f"holds a value that cannot be read ({type(error).__name__})")
    return found


def _is_plain(pa: Any, kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return not (types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _entry(record: _Record, place: str) -> ListEntry | InvalidEntry:
    said = {name.strip(): value for name, value in record.items() if isinstance(name, str)}
    by_name = {name.lower(): name for name in reversed(said)}
    path_column = next(
        (by_name[name] for name in PATH_COLUMNS if name in by_name and said.get(by_name[name])), None
    )
    path = said.pop(path_column) if path_column is not None else None
    if not isinstance(path, str) or not path.strip():
        return InvalidEntry(place, f"has no path; name the column one of {', '.join(PATH_COLUMNS)}")
    caption = said.pop(by_name["caption"]) if "caption" in by_name else None
    entry = ListEntry(
        _clean(path.strip()),
        _clean(first_text(caption)[:MAX_CAPTION_CHARS]) or None,
        _attributes(said),
    )
    return _checked(entry, place)


def _checked(entry: ListEntry, place: str) -> ListEntry | InvalidEntry:
    if len(entry.path) <= MAX_PATH_CHARS:
        return entry
    return InvalidEntry(
        place, f"has a path of {len(entry.path)} characters; at most {MAX_PATH_CHARS} are read"
    )


def _attributes(said: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in said.items():
        text = _text(value)
        name = _SPELLINGS.get(name.lower(), name.lower() if name.lower() == "licence" else name)
        if text and name and len(name) <= MAX_NAME_CHARS and len(found) < MAX_ATTRIBUTES:
            found.setdefault(_clean(name), _clean(text[:MAX_ATTRIBUTE_CHARS]))
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list | dict) and value:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except RecursionError:  # nested too deeply for JSON output
            return ""
        return text if len(text) <= MAX_ATTRIBUTE_CHARS else ""
    return ""


def _clean(text: str) -> str:
    """Replace characters that UTF-8 cannot encode: JSON may contain half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
