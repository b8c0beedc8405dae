"""Rows of a CSV file with their line numbers."""

import csv
import io
from collections.abc import Iterator, Sequence

from loader.errors import UsageError

Row = dict[str, str | None]


def csv_rows(text: str, name: str) -> tuple[Sequence[str], Iterator[tuple[int, Row]]]:
    """Split a text into column names and a lazy iterator of rows.

    Args:
        text: content of the file; the first line names the columns.
        name: file name for messages.

    Returns:
        Column names, and line number and values of each row; short rows lack their last values.

    Raises:
        UsageError: a line is no CSV; also raised during iteration.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = _rows(reader, name)
    try:
        return reader.fieldnames or (), rows
    except csv.Error as error:
        raise UsageError(f"{name} line 1 is no CSV: {error}") from error


def _rows(reader: "csv.DictReader[str]", name: str) -> Iterator[tuple[int, Row]]:
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"{name} line {reader.line_num + 1} is no CSV: {error}") from error
