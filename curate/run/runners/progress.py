"""Progress of a run: weighed by pixels times duration, with an ETA, the slowest sources, and a status file."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import SourceSummary
from reelweave.curate.source_pass.at_work import at_work
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.errors import RunError, first_line

SLOWEST = 10
STATUS = "status"

_STATUS_EVERY_S = 2.0


@dataclass(frozen=True)
class Progress:
    """Progress of one phase of a run.

    Attributes:
        phase: "cut" (sources, up to deduplication), "caption" (kept clips, the stages after it) or "shard"; before
            all of them "cluster", while nodes are awaited, and "scores", while clips of finished sources are measured.
        done: Number of finished sources or shards, those of earlier runs too; of clips in this phase; of CPUs and
            GPUs that are there.
        total: Number of all.
        done_weight: Weight of the finished ones: pixels x seconds of sources, number of clips, bytes of shards.
        total_weight: Weight of all, estimated from bytes for sources that are not probed yet.
        eta_s: Seconds left at the rate of this run; None until it is known.
        states: Number of records per state, before duplicates are sought.
        sources: Number of finished sources that failed whole ("failed"), and of the others ("done").
        retries: Requests to storage that this run's passes over sources sent again.
        current: What was finished last.
        slowest: Sources of this run that took longest, with their seconds.
        at_work: Sources in work for long: URI, share of its bytes read, seconds so far.
    """

    phase: str
    done: int
    total: int
    done_weight: float
    total_weight: float
    eta_s: float | None = None
    states: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    current: str = ""
    slowest: tuple[tuple[str, float], ...] = ()
    at_work: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class Finished:
    """Sources closed before this run.

    Attributes:
        is_one: Whether a source is one of them, by its URI.
        pixel_s: Pixels times seconds of all of them.
        states: Number of records per state.
        failed: Number of sources of which all failed.
    """

    is_one: Callable[[str], bool] = lambda _: False
    pixel_s: float = 0.0
    states: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0


class _Working(NamedTuple):
    """Source that a worker has begun and not closed.

    Attributes:
        note: What its worker noted, see `at_work`.
        since: Time at which this was read first, of `time.monotonic`.
    """

    note: tuple[str, float, float, str]
    since: float


class Meter:
    """Progress over the sources of a run.

    Args:
        sources: All sources.
        before: Those closed before this run.
        report: Called after every source.
        ledger: Place of the status file.

    Attributes:
        last: Newest progress; None before the first.
        retries: Requests to storage that were sent again, added up by the caller.
        fault: Sentence on a status file that could not be written; "" without.
    """

    def __init__(
        self,
        sources: Iterable[SourceRef],
        before: Finished,
        report: Callable[[Progress], None],
        ledger: Ledger,
    ) -> None:
        self._report, self._ledger = report, ledger
        self._waiting: dict[str, int] = {}  # bytes of sources that are left
        # Running sums: a sum over all sources after each source would cost their square.
        self._total = self._total_bytes = 0
        for source in sources:
            size = max(0, source.size)
            self._total, self._total_bytes = self._total + 1, self._total_bytes + size
            if not before.is_one(source.uri):
                self._waiting[source.uri] = size
        self._waiting_bytes = sum(self._waiting.values())
        self._partly: dict[str, float] = {}  # shares of sources in parts
        self._states: Counter[str] = Counter(before.states)
        self._failed = before.failed
        self.last: Progress | None = None
        self.retries = 0
        self.fault = ""
        self._slowest: list[tuple[str, float]] = []
        self._weight = before.pixel_s
        self._weight_before, self._began = self._weight, time.monotonic()
        self._written_at = float("-inf")
        self._at_work: tuple[_Working, ...] = ()
        self._lock = threading.RLock()

    def mark_done(self, uri: str, summary: SourceSummary) -> None:
        with self._lock:
            self._partly.pop(uri, None)
            if uri in self._waiting:
                self._waiting_bytes -= self._waiting.pop(uri)
                self._failed += all(record.state == "failed" for record in summary.records)
            self._count(summary)
            slowest = [source_seconds for source_seconds in self._slowest if source_seconds[0] != uri] + [
                (uri, summary.seconds or 0.0)
            ]
            self._slowest = sorted(slowest, key=lambda item: -item[1])[:SLOWEST]
            self.show(uri)

    def part_done(self, uri: str, what: str, share: float) -> None:
        """Report what was done of a source that is not closed yet, and which share of its work that is."""
        with self._lock:
            self._partly[uri] = share
            self.show(_part_name(uri, what))

    def show(self, current: str = "") -> Progress:
        """Report, and keep the status file fresh."""
        with self._lock:
            return self._report_progress(current)

    def show_at_work(self) -> None:
        """Report the source that is longest in work and how far it is; called by a thread of its own."""
        active = at_work(self._ledger)
        if active:
            uri, share, seconds, part = active[0]
            now = time.monotonic()
            with self._lock:
                # A note is older than half a minute at times; what it says of the time goes on.
                since = {work.note: work.since for work in self._at_work}
                self._at_work = tuple(_Working(note, since.get(note, now)) for note in active[:SLOWEST])
                self.show(f"{_part_name(uri, part)}: {share:.0%} after {seconds / 60:.0f} min")

    def _report_progress(self, current: str) -> Progress:
        self.last = progress = self._progress(current)
        self._report(progress)
        if time.monotonic() - self._written_at >= _STATUS_EVERY_S or not self._waiting:
            self.fault = write_status(self._ledger, progress) or self.fault
            self._written_at = time.monotonic()
        return progress

    def _count(self, summary: SourceSummary) -> None:
        self._weight += summary.pixel_s or 0.0
        self._states.update(record.state for record in summary.records)

    def _progress(self, current: str) -> Progress:
        done_bytes = self._total_bytes - self._waiting_bytes
        # Until something is known a byte weighs one.
        per_byte = self._weight / done_bytes if self._weight and done_bytes else 1.0
        partly = sum(share * self._waiting.get(uri, 0) for uri, share in self._partly.items()) * per_byte
        remaining_s = self._waiting_bytes * per_byte - partly
        gained = self._weight + partly - self._weight_before
        elapsed_s = time.monotonic() - self._began
        done = self._total - len(self._waiting)
        return Progress(
            phase="cut",
            done=done,
            total=self._total,
            done_weight=self._weight + partly,
            total_weight=self._weight + partly + remaining_s,
            eta_s=elapsed_s * remaining_s / gained if gained > 0 else None,
            states=dict(self._states),
            sources={"done": done - self._failed, "failed": self._failed},
            retries=self.retries,
            current=current,
            slowest=tuple(self._slowest),
            at_work=tuple(
                (_part_name(uri, part), share, seconds + time.monotonic() - since)
                for (uri, share, seconds, part), since in self._at_work
                if uri in self._waiting
            ),
        )


def _part_name(uri: str, part: str) -> str:
    return f"{uri}, {part}" if part else uri


class ClipMeter:
    """Progress over the clips of later stages.

    Args:
        total: Number of clips.
        report: Called at the start and after every clip.
        ledger: Place of the status file.
        cut: Last progress over the sources, whose numbers stay in that file; None without one.
        phase: Phase of the run, see `Progress`.

    Attributes:
        fault: See `Meter`.
    """

    def __init__(
        self,
        total: int,
        report: Callable[[Progress], None],
        ledger: Ledger,
        cut: Progress | None = None,
        phase: str = "caption",
    ) -> None:
        self._total, self._report, self._ledger, self._cut = total, report, ledger, cut
        self._phase = phase
        self.fault = ""
        self._done, self._began, self._written_at = 0, time.monotonic(), float("-inf")
        self._show("")

    def mark_done(self, source: str) -> None:
        """Count a clip of a source."""
        self._done += 1
        self._show(source)

    def _show(self, current: str) -> None:
        remaining = self._total - self._done
        elapsed_s = time.monotonic() - self._began
        eta_s = elapsed_s * remaining / self._done if self._done else None
        progress = Progress(
            phase=self._phase,
            done=self._done,
            total=self._total,
            done_weight=self._done,
            total_weight=self._total,
            eta_s=eta_s,
            states=self._cut.states if self._cut else {},
            sources=self._cut.sources if self._cut else {},
            retries=self._cut.retries if self._cut else 0,
            current=current,
            slowest=self._cut.slowest if self._cut else (),
        )
        self._report(progress)
        if time.monotonic() - self._written_at >= _STATUS_EVERY_S or not remaining:
            self.fault = write_status(self._ledger, progress) or self.fault
            self._written_at = time.monotonic()


def write_status(ledger: Ledger, progress: Progress) -> str:
    """Write the status file of a run at work, for people and other programs.

    Returns:
        A sentence for the person who runs this where it cannot be written, which ends no run; else "".
    """
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        ledger.notes.write(STATUS, {**asdict(progress), "at": at, "finished": False})
    except RunError as error:
        return f"the status of this run is not up to date: {first_line(error)}"
    return ""


def finish_status(ledger: Ledger) -> tuple[str, ...]:
    """Note in the status file that the run has published its dataset; return a sentence where that fails."""
    try:
        note = ledger.notes.read(STATUS)
        if note is not None and not note.get("finished"):
            ledger.notes.write(STATUS, {**note, "finished": True})
    except RunError as error:
        return (
            f"the dataset is whole, but its status does not say so: {first_line(error)}; the same command writes it",
        )
    return ()
