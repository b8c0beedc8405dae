"""The fused stage as runners call it, with sources cut in a child process."""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from reelweave.curate.frames.child_process import Isolated, Quarantined
from reelweave.curate.source_pass.cut_source import STAGE, CutSource, failed_source, source_id
from reelweave.curate.source_pass.parts.split import SplitCut, SplitOutcome
from reelweave.curate.source_pass.tasks import (
    ClipTask,
    ClosedSource,
    CurationTask,
    DonePart,
    PartTask,
    SourceTask,
    UndoneSource,
    WaitingSource,
    clip_task,
)
from reelweave.curate.sources.addresses import is_unanswered
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.base.processors import is_low_on_memory

KILLED = "killed/"
"""Folder of the ledger with the number of runs that left a task undone, until a run publishes.

Its processes were killed, or its web server gave no answer.
"""

_MOST_KILLED_RUNS = 2


@dataclass
class SourceStage:
    """The fused stage as runners call it; tasks of other kinds pass through.

    Attributes:
        cut: Function that cuts one source.
        wanted: True if later stages shall receive a clip.
        isolate: True if sources are cut in a child process.
        attempts: See `Isolated`.
        max_source_s: See `Isolated.max_silence_s`; of each part of a long source.
        part_s: Duration of a part of a long source, seconds, about; None for no parts.
    """

    cut: CutSource
    wanted: Callable[[ClipTask], bool]
    isolate: bool
    attempts: int
    max_source_s: float
    part_s: float | None = None

    def __call__(self, tasks: Sequence[CurationTask]) -> Iterator[CurationTask]:
        """Cut each source; yield it closed, then its wanted clips, or with the parts that it waits for."""
        for task in tasks:
            if isinstance(task, PartTask):
                yield self._part(task)
                continue
            if not isinstance(task, SourceTask):
                yield task
                continue
            # The pass over the source; a fault of the machine leaves it undone, or fails it where it lasts.
            source = task.source
            began = time.monotonic()
            outcome = self._outcome(source)
            if self._unanswered(source_id(source), outcome.undone):
                failed = failed_source(source, "open", outcome.undone)
                outcome = SplitOutcome(failed, in_parts=self.part_s is not None, retries=outcome.retries)
            if outcome.undone:
                yield UndoneSource(source.uri, outcome.undone, outcome.retries)
                continue
            if outcome.summary is None:
                yield WaitingSource(task, outcome.parts, outcome.retries)
                continue
            # Its entry closes it, and its wanted clips go on.
            seconds = time.monotonic() - began + (outcome.summary.seconds or 0.0)
            summary = replace(outcome.summary, seconds=seconds)
            self.cut.ledger.entries.write(STAGE, self.cut.fingerprint, source_id(source), summary)
            if outcome.in_parts:
                self._split.drop(source)
            yield ClosedSource(source.uri, summary, outcome.retries)
            if task.todo:
                clips = (
                    clip_task(source, summary, record) for record in summary.records if record.state == "kept"
                )
                yield from filter(self.wanted, (replace(clip, todo=task.todo) for clip in clips))

    @property
    def _split(self) -> SplitCut:
        return SplitCut(self.cut, self.part_s)

    def _outcome(self, source: SourceRef) -> SplitOutcome:
        if not self.isolate:
            return self._split(source)
        reply = self._child()(source)
        if isinstance(reply, Quarantined):
            if undone := self._killed_reason(source_id(source), reply):
                return SplitOutcome(undone=undone)
            return SplitOutcome(
                failed_source(source, "worker", reply.reason), in_parts=self.part_s is not None
            )
        return reply[0]

    def _part(self, task: PartTask) -> DonePart | UndoneSource:
        """Scan or cut one part of a long source."""
        if not self.isolate:
            outcome = self._split(task)
        else:
            reply = self._child()(task)
            if isinstance(reply, Quarantined):
                source, part = task.source, task.part.number
                if undone := self._killed_reason(f"{source_id(source)}-{task.step}-{part}", reply):
                    return UndoneSource(source.uri, undone)
                self._split.lose(task, reply.reason)
                return DonePart(task)
            outcome = reply[0]
        if self._unanswered(f"{source_id(task.source)}-{task.step}-{task.part.number}", outcome.undone):
            self._split.lose(task, outcome.undone)
            return DonePart(task)
        if outcome.undone:
            return UndoneSource(task.source.uri, outcome.undone, outcome.retries)
        return DonePart(task, outcome.fault, outcome.retries)

    def _killed_reason(self, identity: str, quarantine: Quarantined) -> str:
        """Return why a task is left undone whose processes somebody else killed; "" where the task is at fault.

        The kernel kills where memory runs out, and that may be another program's doing. So a task is at fault only in
        the second run that loses it in this way while the machine has memory left.
        """
        if not quarantine.killed:
            return ""
        ledger, name = self.cut.ledger, f"{KILLED}{identity}"
        runs = ledger.notes.read(name) or 0
        if is_low_on_memory():
            return f"{quarantine.reason} until the next run, since this machine has hardly any memory left"
        if runs + 1 >= _MOST_KILLED_RUNS:
            return ""
        ledger.notes.write(name, runs + 1)
        return f"{quarantine.reason} until the next run; it fails if that loses it in the same way"

    def _unanswered(self, identity: str, reason: str) -> bool:
        """Return whether a reason is that of a web server which gave no answer in the run before, either.

        Lists name servers that are gone for good, and a run over them must come to an end.
        """
        if not is_unanswered(reason):
            return False
        ledger, name = self.cut.ledger, f"{KILLED}unanswered-{identity}"
        if ledger.notes.read(name) is not None:
            return True
        ledger.notes.write(name, 1)
        return False

    def _child(self) -> "Isolated[SourceRef | PartTask, SplitOutcome]":
        split = self._split
        return _isolated_child(_Pickled(pickle.dumps(split), split), self.attempts, self.max_source_s)

    @staticmethod
    def close() -> None:
        """End the child of this process."""
        _isolated_child.cache_clear()


@dataclass(frozen=True)
class _Pickled:
    """A function that equals another one when both are pickled to the same bytes."""

    data: bytes
    split: SplitCut = field(compare=False)

    def __call__(self, work: SourceRef | PartTask) -> Iterable[SplitOutcome]:
        yield self.split(work)


@lru_cache(maxsize=1)
def _isolated_child(
    function: _Pickled, attempts: int, max_source_s: float
) -> "Isolated[SourceRef | PartTask, SplitOutcome]":
    """Return the child of this process. Ray makes a stage anew for each source, and a child takes a second to start."""
    return Isolated(function, attempts, max_source_s)
