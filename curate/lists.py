"""Reading lists of sources: txt, csv, jsonl and parquet, one entry after the other."""

import csv
import datetime
import decimal
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from loader.errors import UsageError

LIST_SUFFIXES = frozenset((".txt", ".csv", ".jsonl", ".parquet"))
PATH_COLUMNS = ("path", "video", "source", "url")
MAX_LINE_BYTES = 1 << 20
MAX_CAPTION_CHARS = 64_000
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_CHARS = 4000
MAX_NAME_CHARS = 100

_SPELLINGS = {"license": "licence"}
_PARQUET_ROWS = 4096


@dataclass(frozen=True)
class Entry:
    """One source of a list.

    Attributes:
        path: as the list spells it.
        caption: or None.
        attributes: all further columns as text; a licence is called "licence" however the list spells it.
    """

    path: str
    caption: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)


def read_list(file: BinaryIO, name: str) -> Iterator[Entry]:
    """Entries of the list in ``file`` in order; memory is bounded by one entry, or one batch of parquet rows.

    The first of the columns `PATH_COLUMNS` that an entry fills is its path, ``caption`` its caption. Further
    columns are cut at `MAX_ATTRIBUTE_CHARS`; binary and large nested values are left out.

    Args:
        file: open for reading.
        name: of the list, for messages; its suffix decides the format.

    Raises:
        UsageError: naming the line or entry that is wrong.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".txt":
        for line in _lines(file, name):
            if line.strip() and not line.startswith("#"):
                yield Entry(line.strip())
        return
    readers = {".csv": _csv_records, ".jsonl": _jsonl_records, ".parquet": _parquet_records}
    for number, record in enumerate(readers[suffix](file, name), 1):
        entry = _entry(record)
        if entry is None:
            raise UsageError(
                f"list {name}, entry {number} has no path; name the column one of {', '.join(PATH_COLUMNS)}"
            )
        yield entry


def _lines(file: BinaryIO, name: str) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"list {name}, line {number} has more than {MAX_LINE_BYTES} bytes; shorten it")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n") + "\n"
        except UnicodeDecodeError as error:
            raise UsageError(f"list {name}, line {number} is no UTF-8 text; save it as UTF-8") from error


def _csv_records(file: BinaryIO, name: str) -> Iterator[Mapping[str, Any]]:
    rows = csv.DictReader(_lines(file, name), restkey="")
    try:
        for row in rows:
            if row.pop("", None):
                raise UsageError(
                    f"list {name}, line {rows.line_num} has more cells than the first line; quote text with commas"
                )
            yield row
    except csv.Error as error:
        raise UsageError(f"list {name}, line {rows.reader.line_num} is no CSV: {error}") from error


def _jsonl_records(file: BinaryIO, name: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(_lines(file, name), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"list {name}, line {number} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise UsageError(f'list {name}, line {number} is no object like {{"path": "..."}}')
            yield record


def _parquet_records(file: BinaryIO, name: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        names = [column.name for column in table.schema_arrow if _is_plain(pa, column.type)]
        for batch in table.iter_batches(_PARQUET_ROWS, columns=names):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"list {name} is no readable parquet file: {error}") from error


def _is_plain(pa: Any, kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_list(kind):
        kind = kind.value_type
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return not (types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _entry(record: Mapping[str, Any]) -> Entry | None:
    said = {name.strip(): value for name, value in record.items() if isinstance(name, str)}
    by_name = {name.lower(): name for name in reversed(said)}
    path_column = next((by_name[name] for name in PATH_COLUMNS if said.get(by_name.get(name, ""))), None)
    path = said.pop(path_column) if path_column is not None else None
    if not isinstance(path, str):
        return None
    caption = said.pop(by_name["caption"]) if "caption" in by_name else None
    return Entry(
        _clean(path.strip()),
        _clean(caption[:MAX_CAPTION_CHARS]) or None if isinstance(caption, str) else None,
        _attributes(said),
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
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= MAX_ATTRIBUTE_CHARS else ""
    return ""


def _clean(text: str) -> str:
    """Without what no UTF-8 file can hold: JSON may spell half a character."""
    return text.encode("utf-8", "replace").decode()
