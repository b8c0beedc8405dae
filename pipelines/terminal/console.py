"""What commands print: results on stdout (or one JSON value), everything else on stderr."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from loader.base.printable import printable, printable_json


class _PlainConsole(Console):
    """A console to which text is never markup and never tells the terminal what to do.

    Each string that is printed is one line. Whatever else is drawn (cells, progress) passes `render`, where line breaks
    are the console's own.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print strings as `plain` text, and anything else as `rich.console.Console.print` does."""
        super().print(*(plain(one) if isinstance(one, str) else one for one in objects), **options)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a spinner beside `plain` text."""
        return super().status(plain(status) if isinstance(status, str) else status, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of anything, their text printable; those that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n")
            yield segment if text == segment.text else Segment(text, segment.style)


def stdout() -> Console:
    """For results."""
    return _PlainConsole(highlight=False)


def stderr() -> Console:
    """For progress, notes and errors."""
    return _PlainConsole(stderr=True, highlight=False)


def plain(text: str) -> Text:
    """Text on one line without markup, whatever a file name, caption or address in it holds."""
    return Text(printable(text))


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    print(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of plain text: nothing in a cell is markup, whatever a file name or caption holds."""
    made = Table(title=Text(printable(title), "table.title"), title_justify="left")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) for row in rows)
        justify: Literal["left", "right"] = "right" if numeric and rows else "left"
        made.add_column(plain(column), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*(plain(_said(value)) for value in row))
    return made


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Progress bars with counts, elapsed time and ETA, on stderr."""
    columns = (
        _Field("{task.description}", markup=False),
        BarColumn(),
        _Field("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        _Field("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=stderr(), transient=False) as bars:
        yield bars


class _Field(TextColumn):
    """A field of a task as `plain` text."""

    def render(self, task: Task) -> Text:
        return plain(super().render(task).plain)


def _said(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
