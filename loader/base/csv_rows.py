"""Rows of a CSV file that a person names, with their line numbers."""

import csv
import io
from collections.abc import Iterator, Sequence

from loader.errors import UsageError

Row = dict[str, str | None]


def csv_rows(text: str, name: str) -> tuple[Sequence[str], Iterator[tuple[int, Row]]]:
    """Split a text into its columns and, as they are asked for, its rows.

    Args:
        text: of the file; its first line names the columns.
        name: of the file, for messages.

    Returns:
        Names of the columns, and the line and values of each row; a short row lacks its last values.

    Raises:
        UsageError: a line is no CSV; also while rows are read.
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
