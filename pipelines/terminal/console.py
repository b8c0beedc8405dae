"""Output of commands: results on stdout (or one JSON value), everything else on stderr."""

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from reelweave.loader.base.printable import printable, printable_json
from reelweave.pipelines.terminal.noise import is_quiet

_UNFOLDED = 100_000  # columns of a pipe or a file, whose reader folds lines, or not
_REMEMBERED_S = 86400.0  # of the steps that an estimate looks back on; rich forgets those older than 30 s
LINES_EVERY_S = 30.0
"""Seconds between lines of progress where nobody looks at a terminal."""
_NUMBER = re.compile(r"(\+-? ?|-)?[\d.,]+(e[+-]?\d+)?( ?%)?")


class Titled(NamedTuple):
    """A table below its title, which is one line whatever the width."""

    title: str
    table: Table


class _PlainConsole(Console):
    """A console that prints text as it is: no markup, no control characters, and no folding in a pipe or a file.

    Each string is one line. Other renderables (tables, progress bars) pass `render`, whose line breaks are the
    console's own.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        if not self.is_terminal:
            self.width = _UNFOLDED

    def print(self, *objects: Any, **options: Any) -> None:
        """Print strings as `plain` text, tables below their titles, and anything else as `rich` does."""
        for printed in objects:
            if isinstance(printed, Titled):
                super().print(plain(printed.title), style="bold", soft_wrap=True)
                self._print_table(Padding(printed.table, (0, 0, 0, 2), expand=False))
        untitled = [printed for printed in objects if not isinstance(printed, Titled)]
        if untitled or not objects:
            super().print(
                *(plain(printed) if isinstance(printed, str) else printed for printed in untitled), **options
            )

    def _print_table(self, table: RenderableType) -> None:
        """Print a table, in a pipe or a file without blanks at the ends of lines."""
        if self.is_terminal:
            super().print(table)
            return
        for line in self.render_lines(table, pad=False):
            super().print(Text("".join(segment.text for segment in line).rstrip()), soft_wrap=True)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a spinner beside `plain` text."""
        return super().status(plain(status) if isinstance(status, str) else status, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable with printable text; control segments are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n")
            yield segment if text == segment.text else Segment(text, segment.style)


def stdout() -> Console:
    """Return the console for results."""
    return _PlainConsole()


def stderr() -> Console:
    """Return the console for progress and notes; `--quiet` silences it."""
    return _PlainConsole(stderr=True, quiet=is_quiet())


def plain(text: str) -> Text:
    """Return text on one line without markup, whatever a file name, caption or address in it holds."""
    return Text(printable(text))


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Titled:
    """Return a table of plain text without lines: columns of numbers are aligned at the right.

    Columns without a name and a value are left out: `rich` counts them in another width than it measures, and folds the
    widest column to make room.
    """
    rich_table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    spoken = [[_spoken_value(value) for value in row] for row in rows]
    used = [
        index
        for index, column in enumerate(columns)
        if plain(column) or any(plain(row[index]) for row in spoken)
    ]
    shown = [[row[index] for index in used] for row in spoken]
    for column_index, column in enumerate(columns[index] for index in used):
        cells = [row[column_index] for row in shown]
        numeric = any(cells) and all(not cell or _NUMBER.fullmatch(cell) for cell in cells)
        rich_table.add_column(plain(column), justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        rich_table.add_row(*map(plain, row))
    return Titled(title, rich_table)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show progress bars with counts, elapsed time and ETA on stderr; in a pipe or a file, lines now and then."""
    if not stderr().is_terminal:
        with _ProgressLines().ticking() as lines:
            yield lines
        return
    columns = (
        _Field("{task.description}", markup=False),
        BarColumn(),
        _Field("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        _TimeLeft(),
        _Field("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=stderr(), speed_estimate_period=_REMEMBERED_S) as bars:
        yield bars


class _ProgressLines(Progress):
    """Progress whose tasks have a line each at their begin and end, and every half minute between them."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self._begun: set[TaskID] = set()
        self._last = ""

    def update(self, task_id: TaskID, *arguments: Any, **fields: Any) -> None:
        super().update(task_id, *arguments, **fields)
        self._begin(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        self._begin(task_id)
        super().advance(task_id, advance)

    @contextmanager
    def ticking(self, every_s: float = LINES_EVERY_S) -> Iterator[Self]:
        """Write lines from a thread; one more where the body ends without an error."""
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(every_s):
                self._say(again=True)

        thread = threading.Thread(target=tick, name="progress lines", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
        self._say(again=False)

    def _begin(self, task_id: TaskID) -> None:
        if task_id not in self._begun and self._tasks[task_id].total is not None:
            self._begun.add(task_id)
            self._say(again=False)

    def _say(self, again: bool) -> None:
        """Write a line on the tasks that have begun; the same one again where asked, as a sign of life."""
        tasks = [task for task in self.tasks if task.id in self._begun]
        line = "; ".join(map(_describe_task, tasks))
        if line and (again or line != self._last):
            self._last = line
            stderr().print(line, soft_wrap=True)


def _describe_task(task: Task) -> str:
    """Return a task in words, for example "tars: 3/7 (43%), films-3.tar"."""
    count = task.fields.get("count") or f"{task.completed:,.0f}/{task.total or 0:,.0f}"
    note = task.fields.get("note")
    return f"{task.description}: {count} ({task.percentage:.0f}%)" + (f", {note}" if note else "")


class _TimeLeft(TimeRemainingColumn):
    """Column of the time left: as a task's ``ends_at`` tells, a time of `time.monotonic`, else as rich estimates."""

    def render(self, task: Task) -> Text:
        ends_at = task.fields.get("ends_at")
        if ends_at is None or task.finished:
            return super().render(task)
        seconds = max(0, round(ends_at - time.monotonic()))
        return Text(str(timedelta(seconds=seconds)), style="progress.remaining")


class _Field(TextColumn):
    """Column that shows a field of a task as `plain` text."""

    def render(self, task: Task) -> Text:
        return plain(super().render(task).plain)


def _spoken_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
