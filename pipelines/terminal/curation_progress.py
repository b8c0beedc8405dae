"""Progress of a curation: bars on a terminal, and where nobody looks at one a line every half minute."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rich.progress import TaskID

from reelweave.loader.base.printable import printable_json
from reelweave.pipelines.terminal.console import LINES_EVERY_S, progress_bars, stderr

if TYPE_CHECKING:
    from reelweave.curate.run.runners.progress import Progress

REPORTING = "report"
"""Phase in which the report of a dataset is made."""

PHASES = {
    "cluster": "cluster",
    "scores": "scores",
    "cut": "clips",
    "caption": "captions",
    "shard": "shards",
    "latents": "latents",
    REPORTING: "report",
}
_UNITS = {
    "cluster": "CPUs and GPUs",
    "scores": "sources",
    "cut": "sources",
    "caption": "clips",
    "shard": "shards",
    "latents": "shards",
    REPORTING: "pictures",
}
_AT_WORK = 3


@contextmanager
def curation_progress(
    log_format: str = "text", run: str = "", every_s: float = LINES_EVERY_S
) -> "Iterator[Callable[[Progress], None]]":
    """Show the progress of a curation, or of shards of latents, on stderr.

    Args:
        log_format: "text": bars on a terminal, else lines; "json": JSON lines.
        run: URI of what is made, for JSON lines.
        every_s: seconds between lines.
    """
    if log_format == "text" and stderr().is_terminal:
        with _bars() as show:
            yield show
        return

    def write(progress: "Progress") -> None:
        text = describe_progress(progress) if log_format == "text" else json_line(progress, run)
        stderr().print(text, soft_wrap=True)

    lines = _Lines(write, every_s)
    with lines.ticking():
        yield lines.show


def describe_progress(progress: "Progress") -> str:
    """Return progress as a line of text.

    For example ``clips: 3 of 10 sources (31 %), about 4 min left; long.mp4: 43 % read after 5 min``.
    """
    if not progress.total:  # how much there is to do is not known yet
        return f"{PHASES.get(progress.phase, progress.phase)}: begun"
    share = progress.done_weight / progress.total_weight if progress.total_weight else 1.0
    parts = [
        f"{PHASES.get(progress.phase, progress.phase)}: {progress.done:,} of {progress.total:,}"
        f" {_UNITS.get(progress.phase, '')} ({share:.0%})"
    ]
    if progress.eta_s is not None and progress.done < progress.total:
        parts[0] += f", about {duration(progress.eta_s)} left"
    parts += [
        f"{source.rsplit('/', 1)[-1]}: {read:.0%} read after {duration(seconds)}"
        for source, read, seconds in progress.at_work[:_AT_WORK]
    ]
    return "; ".join(parts)


def age_progress(progress: "Progress", age_s: float) -> "Progress":
    """Return progress of some seconds ago as it is now: sources in work are so much longer in work."""
    at_work = tuple((source, share, round(seconds + age_s, 1)) for source, share, seconds in progress.at_work)
    return replace(progress, at_work=at_work)


def json_line(progress: "Progress", run: str) -> str:
    """Return progress as one JSON object with the time and the run."""
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    return printable_json(json.dumps({"at": at, "run": run, **asdict(progress)}, ensure_ascii=False))


def duration(seconds: float) -> str:
    """Return a duration in the unit that people would use: "40 s", "12 min", "3.5 h", "2.1 d"."""
    for unit, length, digits in (("d", 86400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class _Lines:
    """Writes progress at the begin and end of a phase, and between them again and again."""

    def __init__(self, write: "Callable[[Progress], None]", every_s: float) -> None:
        self._write, self._every_s = write, every_s
        self._last: Progress | None = None
        self._written_at = self._shown_at = float("-inf")
        self._lock = threading.Lock()

    def show(self, progress: "Progress") -> None:
        with self._lock:
            before = self._last
            is_new = before is None or before.phase != progress.phase
            went_on = before is None or before.done < before.total
            ended = progress.done == progress.total and (is_new or went_on)
            self._last, self._shown_at = progress, time.monotonic()
            if is_new or ended:
                self._say()

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Write the last progress again while nothing new comes; so a log tells that the run is alive."""
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(max(0.01, self._written_at + self._every_s - time.monotonic())):
                with self._lock:
                    if time.monotonic() - self._written_at >= self._every_s:
                        self._say()

        thread = threading.Thread(target=tick, name="progress lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _say(self) -> None:
        self._written_at = time.monotonic()
        if self._last is not None:
            self._write(age_progress(self._last, self._written_at - self._shown_at))


@contextmanager
def _bars() -> "Iterator[Callable[[Progress], None]]":
    with progress_bars() as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: "Progress") -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(PHASES[progress.phase], count="", note="")
            ends_at = None if progress.eta_s is None else time.monotonic() + progress.eta_s
            bars.update(
                tasks[progress.phase],
                completed=progress.done_weight,
                total=progress.total_weight,
                count=f"{progress.done}/{progress.total}",
                note=progress.current.rsplit("/", 1)[-1],
                ends_at=ends_at,
            )

        yield show
