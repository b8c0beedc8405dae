"""Stages over clips that are cut already: read clips, ask a model, and record the results in the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from curate.ledger import Ledger, digest
from curate.records import ClipResult, Record
from curate.source_pass.tasks import ClipPlace, ClipTask, CurationTask
from loader.errors import RunError

ReadClip = Callable[[ClipTask], bytes]
"""Returns the encoded clip of a task."""

StageFn = Callable[[Sequence[ClipTask], ReadClip], Sequence[ClipResult]]
"""Returns a result for each task; a `Fault` where there is none."""


@dataclass(frozen=True)
class ClipStage:
    """One stage over clips as runners call it; tasks that it has nothing to do for pass through.

    Attributes:
        name: Name of the stage, as in ``ClipTask.todo``.
        fingerprint: Digest of its configuration.
        ledger: Destination of results, and source of staged clips.
        function: Makes the results.
        identity: Identity of what a result depends on.
        go_on: Whether later stages shall receive a clip.
        after_dedup: Whether the stage waits until duplicates are known, and receives kept clips only.
    """

    name: str
    fingerprint: str
    ledger: Ledger
    function: StageFn
    identity: Callable[[ClipTask], str]
    go_on: Callable[[ClipTask], bool] = lambda _: True
    after_dedup: bool = False

    def __call__(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the result where there was something to do."""
        mine = {
            at: task for at, task in enumerate(tasks) if isinstance(task, ClipTask) and self.name in task.todo
        }
        after = list(tasks)
        if mine:
            results = self.function(list(mine.values()), lambda task: read_clip(self.ledger, task))
            for (at, task), result in zip(mine.items(), results, strict=True):
                self.ledger.close(self.name, self.fingerprint, self.identity(task), result)
                done = task.with_result(self.name, result)
                todo = tuple(name for name in task.todo if name != self.name) if self.go_on(done) else ()
                after[at] = replace(done, todo=todo)
        return after


def read_clip(ledger: Ledger, task: ClipTask) -> bytes:
    """Return the clip of a task, staged or from its place in a shard.

    Raises:
        RunError: it is in neither.
    """
    return clip_bytes(ledger, task.record, task.place)


def clip_bytes(ledger: Ledger, record: Record, place: ClipPlace | None) -> bytes:
    """Return the clip of a record; see `read_clip`."""
    try:
        return ledger.read_clip(record.clip_id)
    except FileNotFoundError:
        if place is None:
            raise RunError(
                f"clip {record.clip_id} is missing from {ledger.storage.uri('.ledger/clips')};"
                " run again with --retry-failed to cut it anew"
            ) from None
    return ledger.storage.read(*place)


def clip_identity(task: ClipTask) -> str:
    """Return the identity of a result that depends on the clip's bytes alone."""
    return task.record.clip_id


def caption_identity(task: ClipTask) -> str:
    """Return the identity of a caption, which may also come from what stands beside the source."""
    written = digest(task.record.source, task.caption or "", dict(task.tags))
    return f"{task.record.clip_id}-{written[:16]}"
