"""Rows and numbers of a CSV file with their line numbers."""

import csv
import io
from collections.abc import Iterator, Sequence

from reelweave.loader.errors import UsageError

CsvRow = dict[str, str | None]

_MOST_NUMBER = 1e12


def csv_rows(text: str, name: str) -> tuple[Sequence[str], Iterator[tuple[int, CsvRow]]]:
    """Split a text into column names and a lazy iterator of rows.

    Args:
        text: content of the file; the first line names the columns.
        name: file name for messages.

    Returns:
        Column names, and line number and values of each row; short rows lack their last values.

    Raises:
        UsageError: a line is no CSV; also raised during iteration.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    rows = _rows(reader, name)
    try:
        return reader.fieldnames or (), rows
    except csv.Error as error:
        raise UsageError(f"{name} line 1 is no CSV: {error}") from error


def _rows(reader: "csv.DictReader[str]", name: str) -> Iterator[tuple[int, CsvRow]]:
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"{name} line {reader.line_num + 1} is no CSV: {error}") from error


def positive(value: object, column: str, at: str, *, is_whole: bool = False, zero: bool = False) -> float:
    """Return a number of a row.

    Args:
        value: text, or a number of JSON.
        column: its name, for messages.
        at: file and line, for messages.
        is_whole: only whole numbers are allowed.
        zero: 0 is allowed.

    Raises:
        UsageError: it is none, or 10^12 or more.
    """
    try:
        parsed = float(value) if isinstance(value, (str, int, float)) else -1.0
    except ValueError:
        parsed = -1.0
    if not ((zero or parsed > 0) and 0 <= parsed < _MOST_NUMBER and (parsed.is_integer() or not is_whole)):
        kind = "whole number" if is_whole else "number"
        raise UsageError(f"{at}: {column} is {value!r}, which is no {'' if zero else 'positive '}{kind}")
    return parsed
