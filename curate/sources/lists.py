"""Parsing of source lists (txt, csv, jsonl and parquet), one entry after the other."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from curate.sources.attributes import MAX_CAPTION_CHARS, attributes_of, clean
from curate.sources.literals import is_literal, literal_of
from curate.sources.segments import Segment
from curate.sources.span_columns import (
    ListedSpan,
    SpanError,
    may_hold_spans,
    names_spans,
    plain_name,
    spans_of,
)
from loader.errors import UsageError, first_line
from loader.text import first_text

LIST_SUFFIXES = frozenset((".txt", ".csv", ".jsonl", ".parquet"))
PATH_COLUMNS = ("path", "video", "source", "url")
MAX_LINE_BYTES = 1 << 20
MAX_PATH_CHARS = 16_384
ID_COLUMNS = ("youtubeid", "videoid", "ytid", "vid")
"""Columns with the ID of a film, whose file has this name, where no column holds its path; without case and signs."""

_PAGE = re.compile(
    r"(?:https?://)?(?:www\.|m\.)?(?:youtube\.com/(?:watch\?(?:[^#]*&)?v=|shorts/|embed/)|youtu\.be/)([\w-]{6,20})"
)
_PARQUET_ROWS = 4096
_PARQUET_DEPTH = 4

_Record = Mapping[str, Any]


@dataclass(frozen=True)
class ListEntry:
    """One source in a source list.

    Attributes:
        path: Path as spelled in the list.
        caption: Caption of the whole film, or None.
        attributes: All further columns as text; any spelling of a licence column becomes "licence".
        segments: Segments of the film that the entry names, each with its own caption and attributes.
        ids: IDs of the film, one of which its file beside the list is called; then `path` is the first.
        place: Line or entry, such as "entry 7".
    """

    path: str
    caption: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    segments: Sequence[Segment] = ()
    ids: tuple[str, ...] = ()
    place: str = ""


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
    Columns that name segments are those of `curate.sources.span_columns`. Further columns are attributes.

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
                yield _checked(ListEntry(line.strip(), place=f"line {number}"))
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
        names, vectors = _parquet_columns(pa, table.schema_arrow)
        for batch in table.iter_batches(_PARQUET_ROWS, columns=names):
            try:
                rows: list[_Record | InvalidEntry] = batch.to_pylist()
            except (ValueError, OverflowError):  # text that is no UTF-8, a date out of range
                rows = [_parquet_row(batch.slice(row, 1), number + row + 1) for row in range(len(batch))]
            number += len(rows)
            yield from (_without_vectors(row, vectors) for row in rows) if vectors else rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"list {name} is no readable parquet file: {first_line(error)}") from error


def _parquet_row(row: Any, number: int) -> _Record | InvalidEntry:
    try:
        found: _Record = row.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return InvalidEntry(f"entry {number}", f"holds a value that cannot be read ({type(error).__name__})")
    return found


def _parquet_columns(pa: Any, schema: Any) -> tuple[list[str], list[str]]:
    """Return the columns to read, and those of them that are vectors unless they have a number for each segment."""
    has_spans = any(names_spans(column.name) for column in schema)
    names, vectors = [], []
    for column in schema:
        if _is_plain(pa, column.type) or (may_hold_spans(column.name) and _is_readable(pa, column.type)):
            names.append(column.name)
        elif has_spans and _is_readable(pa, column.type, 1):
            names.append(column.name)
            vectors.append(column.name)
    return names, vectors


def _without_vectors(row: _Record | InvalidEntry, vectors: Sequence[str]) -> _Record | InvalidEntry:
    if isinstance(row, InvalidEntry):
        return row
    counts = {len(value) for name, value in row.items() if isinstance(value, list) and may_hold_spans(name)}
    return {
        name: value
        for name, value in row.items()
        if name not in vectors or (value is not None and len(value) in counts)
    }


def _is_plain(pa: Any, kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return not (types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _is_readable(pa: Any, kind: Any, depth: int = _PARQUET_DEPTH) -> bool:
    """Return True for plain values in lists and objects, which spans are written as."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return depth > 0 and _is_readable(pa, kind.value_type, depth - 1)
    if types.is_struct(kind):
        return depth > 0 and all(_is_readable(pa, one.type, depth - 1) for one in kind)
    return _is_plain(pa, kind)


def _entry(record: _Record, place: str) -> ListEntry | InvalidEntry:
    said = {name.strip(): value for name, value in record.items() if isinstance(name, str)}
    path, ids = _pop_path(said)
    if not path:
        return InvalidEntry(place, f"has no path; name the column one of {', '.join(PATH_COLUMNS)}")
    try:
        spans, rest = spans_of(said)
    except SpanError as error:
        return InvalidEntry(place, str(error))
    if spans:
        shared, fps = attributes_of(rest), _rate(rest)
        segments = tuple(_segment(span, shared, fps) for span in spans)
        return _checked(ListEntry(path, segments=segments, ids=ids, place=place))
    column = next((name for name in said if name.lower() == "caption"), None)
    text = "" if column is None else first_text(_unlisted(said.pop(column)))
    caption = clean(text[:MAX_CAPTION_CHARS]) or None
    return _checked(ListEntry(path, caption, attributes_of(said), ids=ids, place=place))


def _pop_path(said: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the path of an entry, whose column is removed, and the IDs under which its file is to be found."""
    by_name = {name.lower(): name for name in reversed(said)}
    column = next(
        (by_name[name] for name in PATH_COLUMNS if name in by_name and said.get(by_name[name])), None
    )
    value = None if column is None else said[column]
    page = _PAGE.match(value.strip()) if isinstance(value, str) else None
    if column is not None and page is None:
        del said[column]
        return (clean(value.strip()), ()) if isinstance(value, str) else ("", ())
    if page:  # beside it Koala-36M has the ID of a clip, not of the film
        return page[1], (page[1],)
    named = {plain_name(name): value for name, value in reversed(said.items())}
    found = [one.strip() for name in ID_COLUMNS if isinstance(one := named.get(name), str) and one.strip()]
    ids = tuple(dict.fromkeys(map(clean, found)))
    return (ids[0], ids) if ids else ("", ())


def _segment(span: ListedSpan, shared: dict[str, str], fps: float | None) -> Segment:
    caption = clean((span.caption or "")[:MAX_CAPTION_CHARS]).strip() or None
    own = {**shared, **attributes_of(span.columns)} if span.columns else shared
    return Segment(span.start, span.end, span.unit, fps if span.unit == "frame" else None, caption, own)


def _rate(rest: Mapping[str, Any]) -> float | None:
    """Return the frame rate that a row states."""
    value = next((value for name, value in rest.items() if name.lower() == "fps"), None)
    try:
        rate = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return None
    return rate if 0 < rate < 1e4 else None


def _unlisted(value: Any) -> Any:
    """Return the list that a cell holds as text, or the cell: captions may be in brackets."""
    if not isinstance(value, str) or not is_literal(value):
        return value
    try:
        found = literal_of(value)
    except ValueError:
        return value
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else value


def _checked(entry: ListEntry) -> ListEntry | InvalidEntry:
    if len(entry.path) <= MAX_PATH_CHARS:
        return entry
    return InvalidEntry(
        entry.place, f"has a path of {len(entry.path)} characters; at most {MAX_PATH_CHARS} are read"
    )
