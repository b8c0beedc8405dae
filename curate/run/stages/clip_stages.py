"""Stages over clips that are cut already: read clips, ask a model, and record the results in the ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.closed import ClosedSources, text_id
from reelweave.curate.run.tables.columns import column
from reelweave.curate.source_pass.tasks import ClipPlace, ClipTask, CurationTask
from reelweave.loader.errors import MachineError, RunError

ReadClip = Callable[[ClipTask], bytes]
"""Returns the encoded clip of a task."""

Prepare = Callable[[ClipTask, ReadClip], Any]
"""Returns the model's input for a task. It needs no model, so processors without one can run it ahead."""

StageFn = Callable[[Sequence[ClipTask], Callable[[ClipTask], Any]], Sequence[Any]]
"""Returns a result for each task; a `Fault` where there is none. The second argument returns what `Prepare` made of a
task; the encoded clip for a stage without."""

Keep = Callable[[ClipTask, Any], ClipResult]
"""Stores what does not belong into an entry of the ledger, and returns the entry. It needs no model."""


@dataclass(frozen=True)
class Identity:
    """Identity of what a stage's result for a clip depends on, asked of a task and of many clips; both must agree.

    Attributes:
        of_task: Function from a task to its identity.
        of_clips: Function from clips, results of earlier stages and closed sources to identities, null where no clip
            was cut.
    """

    of_task: Callable[[ClipTask], str]
    of_clips: Callable[[pa.Table, Mapping[str, pa.Table], ClosedSources], pa.Array]

    def __call__(self, task: ClipTask) -> str:
        """Return the identity of a task."""
        return self.of_task(task)


@dataclass(frozen=True)
class ClipStage:
    """One stage over clips as runners call it; tasks that it has nothing to do for pass through.

    Called, it does all for a batch. `prepare_tasks`, `run_model` and `record` are the same in three steps, for runners
    that keep a GPU busy with the second one.

    Attributes:
        name: Name of the stage, as in ``ClipTask.todo``.
        fingerprint: Digest of its configuration, models and code.
        ledger: Destination of results, and source of staged clips.
        function: Makes the results.
        identity: Identity of what a result depends on.
        go_on: Whether later stages shall receive a clip.
        after_dedup: Whether the stage waits until duplicates are known, and receives kept clips only.
        prepare: Makes the input of the function; the encoded clip by default.
        keep: Makes the ledger's entry of a result, where that takes more than the result.
        earlier: Fingerprints of the same under earlier revisions of the code, the newest first.
    """

    name: str
    fingerprint: str
    ledger: Ledger
    function: StageFn
    identity: Identity
    go_on: Callable[[ClipTask], bool] = lambda _: True
    after_dedup: bool = False
    prepare: Prepare | None = None
    keep: Keep | None = None
    earlier: tuple[str, ...] = ()

    def __call__(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the result where there was something to do."""
        try:
            answered = self._answer_tasks(tasks, self._input)
        except MachineError:  # tasks whose input cannot be read are told apart from the others
            answered = self.run_model(self.prepare_tasks(tasks))
        return self.record(answered)

    def prepare_tasks(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the model's input where there is something to do."""
        return [self._prepare(task) if self._has(task) else task for task in tasks]

    def run_model(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with what the model answers in place of its input."""
        return self._answer_tasks(tasks, lambda task: task.input)

    def record(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the result of what the model answered, recorded in the ledger."""
        return [self._record_result(task) if self._has(task) else task for task in tasks]

    def _has(self, task: CurationTask) -> TypeGuard[ClipTask]:
        return isinstance(task, ClipTask) and self.name in task.todo

    def _prepare(self, task: ClipTask) -> ClipTask:
        try:
            return replace(task, input=self._input(task))
        except MachineError as error:
            return replace(task, todo=(), undone=str(error))

    def _input(self, task: ClipTask) -> Any:
        def read(task: ClipTask) -> bytes:
            return read_clip(self.ledger, task)

        return read(task) if self.prepare is None else self.prepare(task, read)

    def _answer_tasks(
        self, tasks: Sequence[CurationTask], inputs: Callable[[ClipTask], Any]
    ) -> list[CurationTask]:
        mine = {at: task for at, task in enumerate(tasks) if self._has(task)}
        after = list(tasks)
        if mine:
            answers = self.function(list(mine.values()), inputs)
            for (at, task), answer in zip(mine.items(), answers, strict=True):
                after[at] = replace(task, input=None, answer=answer)
        return after

    def _record_result(self, task: ClipTask) -> ClipTask:
        result = task.answer if self.keep is None else self.keep(task, task.answer)
        self.ledger.entries.write(self.name, self.fingerprint, self.identity(task), result)
        done = replace(task.with_result(self.name, result), made=(*task.made, self.name), answer=None)
        todo = tuple(name for name in task.todo if name != self.name) if self.go_on(done) else ()
        return replace(done, todo=todo)


def read_clip(ledger: Ledger, task: ClipTask) -> bytes:
    """Return the clip of a task, staged or from its place in a shard.

    Raises:
        RunError: it is in neither.
    """
    return clip_bytes(ledger, task.record.clip_id, task.place)


def clip_bytes(ledger: Ledger, clip_id: str, location: ClipPlace | None) -> bytes:
    """Return a clip by the identity of its bytes; see `read_clip`."""
    try:
        return ledger.blobs.read_clip(clip_id)
    except FileNotFoundError:
        if location is None:
            raise RunError(
                f"clip {clip_id} is missing from {ledger.storage.uri('.ledger/clips')};"
                " run again with --retry-failed to cut it anew"
            ) from None
    return ledger.storage.read(*location)


def _clip_id(task: ClipTask) -> str:
    return task.record.clip_id


def _clip_ids(clips: pa.Table, _found: Mapping[str, pa.Table], _closed: ClosedSources) -> pa.Array:
    return clip_ids(clips)


def _caption_id(task: ClipTask) -> str:
    text = text_id(task.record.source, task.caption, task.tags, task.sidecars, task.captions)
    return f"{task.record.clip_id}-{text}"


def _caption_ids(clips: pa.Table, _found: Mapping[str, pa.Table], closed: ClosedSources) -> pa.Array:
    source_indices, which = np.unique(column(clips, "source").to_numpy(), return_inverse=True)
    texts = closed.text_ids(source_indices.astype(np.int64)).take(pa.array(which))
    segments = column(clips, "segment")
    if segments.null_count < len(segments):
        texts = closed.segment_text_ids(clips, texts)
    return pc.binary_join_element_wise(clip_ids(clips), texts, "-")


clip_identity = Identity(_clip_id, _clip_ids)
"""Identity of a result that depends on the clip's bytes alone."""

caption_identity = Identity(_caption_id, _caption_ids)
"""Identity of a caption, which may also come from what stands beside the source."""
