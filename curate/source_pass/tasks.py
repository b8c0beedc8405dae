"""Tasks of a curation, as they pass from stage to stage: a source to cut or a part of one, a closed source, a clip."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from reelweave.curate.ledger.records import ClipResult, Record, SourceSummary
from reelweave.curate.source_pass.part import Part
from reelweave.curate.sources.inputs import SourceRef


class ClipPlace(NamedTuple):
    """Bytes of a clip inside a shard of the dataset's present revision."""

    shard: str
    offset: int
    size: int


@dataclass(frozen=True)
class SourceTask:
    """Task of a worker: one source to cut.

    Attributes:
        source: The source.
        todo: Names of the stages that its clips go through afterwards.
    """

    source: SourceRef
    todo: tuple[str, ...] = ()


PartStep = Literal["scan", "cut"]


@dataclass(frozen=True)
class PartTask:
    """One step of a part of a long source.

    Attributes:
        source: The source.
        step: Step: its frames are scanned, or the clips that begin in it are cut.
        part: The part.
    """

    source: SourceRef
    step: PartStep
    part: Part


@dataclass(frozen=True)
class WaitingSource:
    """A long source whose parts have to be worked on first.

    Attributes:
        task: The source, to be given in again behind its parts.
        parts: Steps of parts that are left to do.
        retries: Number of requests to storage that were sent again.
    """

    task: SourceTask
    parts: tuple[PartTask, ...]
    retries: int = 0


@dataclass(frozen=True)
class DonePart:
    """A step of a part that has ended.

    Attributes:
        task: The step.
        fault: Reason why the source stays whole, or None.
        retries: Number of requests to storage that were sent again.
    """

    task: PartTask
    fault: str | None = None
    retries: int = 0


@dataclass(frozen=True)
class UndoneSource:
    """A source that a fault of the machine keeps from being read; the ledger says nothing of it.

    Attributes:
        uri: URI of the source.
        reason: The fault.
        retries: Number of requests to storage that were sent again.
    """

    uri: str
    reason: str
    retries: int = 0


@dataclass(frozen=True)
class ClosedSource:
    """A source whose summary is in the ledger.

    Attributes:
        uri: URI of the source.
        summary: Its summary.
        retries: Number of requests to storage that were sent again.
        fingerprint: Digest of the configuration of its entry; "" for that of the run.
    """

    uri: str
    summary: SourceSummary
    retries: int = 0
    fingerprint: str = ""


@dataclass(frozen=True)
class ClipTask:
    """A clip on its way through the stages over clips.

    Attributes:
        record: The clip after the pass over its source.
        caption: Caption from the list that named the source or the segment.
        listed_in: URI of that list; "" for what a person named.
        tags: Text in the source's container.
        todo: Names of the stages left to do.
        found: Results so far, by stage.
        made: Stages whose results were made by the workers that the task passed.
        place: Bytes of the clip where it lies in a shard; None where it is staged.
        input: Input of the next stage's model, made ahead; None before.
        answer: Answer of that model, not recorded yet; None before.
        undone: Fault of the machine that keeps a stage from being done; "" without.
        sidecars: Digest of the source's sidecars; "" for none.
        captions: All captions of the list, where it has several.
        attributes: Columns of the list for the source or the segment.
    """

    record: Record
    caption: str | None = None
    listed_in: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    todo: tuple[str, ...] = ()
    found: Mapping[str, ClipResult] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    place: ClipPlace | None = None
    input: Any = None
    answer: Any = None
    undone: str = ""
    sidecars: str = ""
    captions: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)

    def with_result(self, stage: str, result: ClipResult) -> "ClipTask":
        """Return the task with a stage's result."""
        return replace(self, found={**self.found, stage: result})


@dataclass(frozen=True)
class MeasureTask:
    """A closed source whose clips lack scores.

    Attributes:
        source: The source.
        summary: Its entry.
        fingerprint: Digest of the configuration of its entry.
        places: Places of its clips in shards, by their identity; the others are staged.
    """

    source: SourceRef
    summary: SourceSummary
    fingerprint: str
    places: Mapping[str, ClipPlace] = field(default_factory=dict)


CurationTask = (
    SourceTask | MeasureTask | PartTask | WaitingSource | DonePart | UndoneSource | ClosedSource | ClipTask
)


def clip_task(source: SourceRef, summary: SourceSummary, record: Record) -> ClipTask:
    """Return the task of a closed source's clip, before any result and with nothing to do."""
    caption, captions = source.caption_of(record.segment), source.captions_of(record.segment)
    tags = summary.tags or {}
    return ClipTask(
        record,
        caption,
        source.listed_in,
        tags,
        sidecars=source.sidecars,
        captions=captions,
        attributes=source.attributes_of(record.segment),
    )
