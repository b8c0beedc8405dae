"""Parsing of source lists (txt, csv, tsv, json, jsonl and parquet), one entry after the other."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from reelweave.curate.sources.column_names import may_hold_spans, names_spans
from reelweave.curate.sources.entries import InvalidEntry, ListEntry, Record, check_entry, entry_of
from reelweave.curate.sources.json_lists import json_entries
from reelweave.loader.errors import UsageError, first_line

LIST_SUFFIXES = frozenset((".txt", ".csv", ".tsv", ".json", ".jsonl", ".parquet"))
MAX_LINE_BYTES = 1 << 20
_PARQUET_ROWS = 4096
_PARQUET_DEPTH = 4


def read_list(
    file: BinaryIO, name: str, tell: Callable[[str], object] = lambda _: None
) -> Iterator[ListEntry | InvalidEntry]:
    """Yield the entries of the list in ``file`` in order.

    Memory is bounded by one entry, or one batch of parquet rows; a ``.json`` is read as a whole.
    The path of an entry is its first filled column of `PATH_COLUMNS`, its caption the
    first one of `reelweave.curate.sources.column_names.CAPTIONS`.
    Columns that name segments are those of `reelweave.curate.sources.span_columns`. Further columns are attributes.

    Args:
        file: File open for reading.
        name: Name of the list, for messages; its suffix decides the format.
        tell: Called with a sentence on columns that are left out.

    Raises:
        UsageError: The file is no list of its format.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".txt":
        for line_number, line in enumerate(_lines(file), 1):
            if isinstance(line, InvalidEntry):
                yield line
            elif line.strip() and not line.startswith("#"):
                yield check_entry(ListEntry(line.strip(), place=f"line {line_number}"))
        return
    if suffix == ".json":
        yield from json_entries(file, name)
        return
    if suffix == ".parquet":
        records = _parquet_records(file, name, tell)
    else:
        readers = {".csv": _csv_records, ".tsv": _tsv_records, ".jsonl": _jsonl_records}
        records = readers[suffix](file, name)
    for line_number, record in enumerate(records, 1):
        yield record if isinstance(record, InvalidEntry) else entry_of(record, f"entry {line_number}")


def _lines(file: BinaryIO) -> Iterator[str | InvalidEntry]:
    line_number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        line_number += 1
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES)
            yield InvalidEntry(f"line {line_number}", f"has more than {MAX_LINE_BYTES} bytes; shorten it")
            continue
        try:
            yield line.decode("utf-8-sig" if line_number == 1 else "utf-8").rstrip("\r\n") + "\n"
        except UnicodeDecodeError:
            yield InvalidEntry(f"line {line_number}", "is no UTF-8 text; save it as UTF-8")


def _tsv_records(file: BinaryIO, name: str) -> Iterator[Record | InvalidEntry]:
    # Many are written without quotes; strictly, a quote that nobody closes is an error, and takes no lines with it.
    return _csv_records(file, name, kind="TSV", delimiter="\t", strict=True)


def _csv_records(
    file: BinaryIO, name: str, kind: str = "CSV", **dialect: Any
) -> Iterator[Record | InvalidEntry]:
    wrong: list[InvalidEntry] = []
    separator = "tabs" if kind == "TSV" else "commas"

    quotes: list[int] = []  # in each line of the row

    def lines() -> Iterator[str]:
        for line in _lines(file):
            if isinstance(line, InvalidEntry):
                wrong.append(line)
            text = line if isinstance(line, str) else "\n"
            quotes.append(text.count('"'))
            yield text

    rows = csv.DictReader(
        lines(), **dialect
    )  # cells beyond the first line come under None; columns may have no name
    try:
        heads = rows.fieldnames
    except csv.Error as error:
        raise UsageError(f"list {name}, line {rows.reader.line_num} is no {kind}: {error}") from error
    if wrong or not heads:
        reason = f"{wrong[0].place} {wrong[0].reason}" if wrong else "line 1 names no columns"
        raise UsageError(f"list {name}, {reason}")
    while True:
        label = f"line {rows.reader.line_num + 1}"
        quotes.clear()
        try:
            row: Record | InvalidEntry | None = next(rows, None)
        except csv.Error as error:
            row = InvalidEntry(label, f"is no {kind}: {error}")
        yield from wrong
        wrong.clear()
        if row is None:
            return
        if len(quotes) > 1 and sum(quotes) % 2 and not isinstance(row, InvalidEntry):
            row = InvalidEntry(
                label, f"opens a quote that nothing closes, and takes lines up to {rows.line_num} with it"
            )
        if not isinstance(row, InvalidEntry) and None in row:
            label = f"line {rows.line_num}"
            row = InvalidEntry(label, f"has more cells than the first line; quote text with {separator}")
        yield row


def _jsonl_records(file: BinaryIO, name: str) -> Iterator[Record | InvalidEntry]:  # noqa: ARG001
    for line_number, line in enumerate(_lines(file), 1):
        if isinstance(line, InvalidEntry):
            yield line
        elif line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield InvalidEntry(f"line {line_number}", f"is no JSON: {error}")
                continue
            wrong = InvalidEntry(f"line {line_number}", 'is no object like {"path": "..."}')
            yield record if isinstance(record, dict) else wrong


def _parquet_records(
    file: BinaryIO, name: str, tell: Callable[[str], object]
) -> Iterator[Record | InvalidEntry]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows = 0
    try:
        table = pq.ParquetFile(file, pre_buffer=False)  # or all bytes that were read stay in memory
        names, vectors = _parquet_columns(pa, table.schema_arrow)
        if omitted := [column for column in table.schema_arrow.names if column not in names]:
            tell(
                f"columns of list {name} are left out, since they hold bytes or vectors: {', '.join(omitted)}"
            )
        for batch in table.iter_batches(_PARQUET_ROWS, columns=names):
            try:
                rows: list[Record | InvalidEntry] = batch.to_pylist(maps_as_pydicts="lossy")
            except (ValueError, OverflowError):  # text that is no UTF-8, a date out of range
                rows = [_parquet_row(batch.slice(row, 1), num_rows + row + 1) for row in range(len(batch))]
            num_rows += len(rows)
            yield from (_without_vectors(row, vectors) for row in rows) if vectors else rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"list {name} is no readable parquet file: {first_line(error)}") from error


def _parquet_row(row: Any, row_number: int) -> Record | InvalidEntry:
    try:
        record: Record = row.to_pylist(maps_as_pydicts="lossy")[0]
    except (ValueError, OverflowError) as error:
        return InvalidEntry(
            f"entry {row_number}", f"holds a value that cannot be read ({type(error).__name__})"
        )
    return record


def _parquet_columns(pa: Any, schema: Any) -> tuple[list[str], list[str]]:
    """Return the columns to read, and those of them that are vectors unless they have a number for each segment."""
    has_spans = any(names_spans(column.name) for column in schema)
    names, vectors = [], []
    for column in schema:
        readable = _is_readable(pa, column.type)
        if readable and (may_hold_spans(column.name) or not _is_vector(pa, column.type)):
            names.append(column.name)
        elif has_spans and _is_readable(pa, column.type, 1):
            names.append(column.name)
            vectors.append(column.name)
    return names, vectors


def _without_vectors(row: Record | InvalidEntry, vectors: Sequence[str]) -> Record | InvalidEntry:
    if isinstance(row, InvalidEntry):
        return row
    counts = {len(value) for name, value in row.items() if isinstance(value, list) and may_hold_spans(name)}
    return {
        name: value
        for name, value in row.items()
        if name not in vectors or (value is not None and len(value) in counts)
    }


def _is_vector(pa: Any, kind: Any) -> bool:
    """Return True for lists of numbers, also nested, as embeddings are written."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
        return bool(types.is_integer(kind) or types.is_floating(kind) or _is_vector(pa, kind))
    return False


def _is_plain(pa: Any, kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_plain(pa, kind.value_type)
    return not (types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _is_readable(pa: Any, kind: Any, depth: int = _PARQUET_DEPTH) -> bool:
    """Return True for plain values, also in lists and objects."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return depth > 0 and _is_readable(pa, kind.value_type, depth - 1)
    if types.is_map(kind):
        return depth > 0 and all(
            _is_readable(pa, part, depth - 1) for part in (kind.key_type, kind.item_type)
        )
    if types.is_struct(kind):
        return depth > 0 and all(_is_readable(pa, field.type, depth - 1) for field in kind)
    return _is_plain(pa, kind)
