"""What commands print: results on stdout (or one JSON value), everything else on stderr."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table


def stdout() -> Console:
    """For results."""
    return Console(highlight=False)


def stderr() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of plain text: nothing in a cell is markup, whatever a file name or caption holds."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) for row in rows)
        made.add_column(column, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Progress bars with counts, elapsed time and ETA, on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=stderr(), transient=False) as bars:
        yield bars


def _cell(value: object) -> Any:
    from rich.text import Text

    return Text(
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
