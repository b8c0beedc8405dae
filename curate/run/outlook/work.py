"""Work of an update, and that of earlier versions of the code which it takes over: known before it begins."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from reelweave.curate.config import SourceStageConfig, config_digest, earlier_digests
from reelweave.curate.filters.measure import ADDED
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.notes import RUN
from reelweave.curate.ledger.redo import is_redone
from reelweave.curate.run.outlook.measuring import wants_scores
from reelweave.curate.run.shard import revisions_of, scores_of
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import Mask, column, equal, filter_rows
from reelweave.loader.dataset import Dataset
from reelweave.loader.settings import differences
from reelweave.loader.text import pluralize


@dataclass(frozen=True)
class Work:
    """Work of one kind that a run does, or leaves.

    Attributes:
        what: "older" (sources that an earlier revision of the code cut), "scores" (clips that lack some), "cut"
            (another configuration of the cut), "new" (sources without a result), the name of a stage over clips
            ("older STAGE" for results by an earlier revision), "dedup" or "shard" (decided by an earlier revision),
            "redone" (made anew by a run that did not publish it).
        sources: Number of sources.
        clips: Number of clips that earlier runs cut from them.
        clip_s: Seconds of these clips.
        core_s: Processor seconds of this work when it was last done; None where nothing was recorded.
        now: Whether the run does it; otherwise results stay as they are.
        said: The same in words.
    """

    what: str
    sources: int
    clips: int
    clip_s: float
    core_s: float | None
    now: bool
    said: str


@dataclass(frozen=True)
class ContentChange:
    """Change of what decides a dataset.

    Attributes:
        before: Settings of the finished dataset, as JSON values by section; None where they are not compared.
        now: Settings of this run.
        revisions: Revisions of the code of stages that are no entries of the ledger, without those that are 0.
    """

    before: Mapping[str, Any] | None
    now: Mapping[str, Any]
    revisions: Mapping[str, int]

    @property
    def changes_settings(self) -> bool:
        """True if a setting of the finished dataset has another value now."""
        return self.before is not None and next(differences(self.before, self.now), None) is not None


def may_be_older(
    ledger: Ledger,
    dataset: Dataset,
    revisions: Mapping[str, int],
    earlier: Mapping[str, Collection[str]],
) -> bool:
    """Return whether a dataset may hold results of earlier versions of the code; cheap to ask.

    Args:
        ledger: Entries of earlier runs.
        dataset: The finished dataset.
        revisions: See `ContentChange`.
        earlier: Fingerprints of each stage under earlier revisions of its code.
    """
    return (
        scores_of(dataset) != ADDED
        or is_redone(ledger, dataset.manifest.revision)
        or revisions != revisions_of(dataset)
        or any(
            digests and not set(digests).isdisjoint(ledger.entries.fingerprints(stage))
            for stage, digests in earlier.items()
        )
    )


def work_of(state: CurationState, change: ContentChange, redo_older: bool) -> list[Work]:
    """Return the work that is left, before it begins.

    Args:
        state: State of the curation.
        change: Settings before and now.
        redo_older: Whether results of earlier versions are made again.
    """
    pending = [*_older(state, redo_older), *_scores(state, redo_older), *_older_results(state, redo_older)]
    if change.before is not None:
        pending += [*_sources(state, change.before, change.now), *_stages(state)]
    publishes = change.changes_settings or any(work.now for work in pending)
    decided = _decided_work(state, change.revisions, redo_older, publishes)
    return [*_redone(state, redo_older or publishes), *pending, *decided]


def _redone(state: CurationState, publishes: bool) -> Iterator[Work]:
    """Yield what a run with ``redo_older`` made anew and did not publish."""
    dataset = state.inputs.dataset
    if dataset is None or not is_redone(state.inputs.ledger, dataset.manifest.revision):
        return
    totals = dataset.manifest.totals
    sentence = "a run with --redo-older ended before it published what it made anew; " + (
        "this publishes it" if publishes else "--redo-older publishes it"
    )
    yield Work("redone", totals.sources, totals.samples, totals.duration_s, None, publishes, sentence)


def _older(state: CurationState, redo: bool) -> Iterator[Work]:
    older = state.results.closed.older & state.inputs.select_sources(state.inputs.sources.keys())
    if not older.any():
        return
    # Which revisions cut them, how much they gave, and what that cost.
    digests = {state.results.closed.fingerprint(index) for index in np.flatnonzero(older).tolist()}
    revisions = sorted(state.results.earlier_cuts[digest] for digest in digests)
    clips, clip_s = _clips(state.results.closed, older)
    core_s = state.results.closed.total_cpu_s(older)
    # The same in words, with what this run does about it.
    which = (
        f"{int(older.sum())} of {len(state.inputs.sources)} sources ({pluralize(clips, 'clip')}, {_time(clip_s)}) were"
        f" cut by an earlier version (revision {', '.join(map(str, revisions))} of the cut, and this version has"
        f" {SourceStageConfig.REVISION})"
    )
    cost = f"{_core_time(core_s)} as measured then, and all later stages for clips that change"
    sentence = (
        f"{which} and are cut anew: {cost}"
        if redo
        else f"{which} and stay as they are; --redo-older cuts them"
    )
    yield Work(
        "older",
        int(older.sum()),
        clips,
        clip_s,
        core_s,
        redo,
        sentence if redo else f"{sentence} anew: {cost}",
    )


def _older_results(state: CurationState, redo: bool) -> Iterator[Work]:
    """Yield the stages over clips of which an earlier revision of the code made results."""
    for stage in state.inputs.stages:
        if not stage.earlier:
            continue
        sources, count, clip_s = _count_clips(state, partial(state.todo.select_older, stage=stage))
        if not count:
            continue
        core_s = _stage_s(state, stage.name, count)
        cost = "" if core_s is None else f", {_core_time(core_s)} as measured in earlier runs"
        which = f"{stage.name}: {pluralize(count, 'clip')} ({_time(clip_s)}) went through an earlier version of it"
        sentence = (
            f"{which} and do so again{cost}"
            if redo
            else f"{which} and keep its results; --redo-older sends them through this version{cost}"
        )
        yield Work(f"older {stage.name}", sources, count, clip_s, core_s, redo, sentence)


def _decided_work(
    state: CurationState, revisions: Mapping[str, int], redo: bool, changes: bool
) -> Iterator[Work]:
    """Yield deduplication and shards where an earlier revision of the code decided them."""
    if state.inputs.dataset is None:
        return
    was, clips = revisions_of(state.inputs.dataset), state.inputs.dataset.manifest.totals
    for name, now in revisions.items():
        if was.get(name, 0) == now:
            continue
        done = redo or (changes and name == "dedup")
        what = {"dedup": "duplicates are decided", "shard": "shards are written"}[name]
        which = (
            f"{what} otherwise by this version (revision {now} of {name}, the dataset has {was.get(name, 0)})"
        )
        sentence = (
            f"{which}; that is done now, and no source is read"
            if done
            else f"{which} and stay as they are; --redo-older does it anew without reading a source"
        )
        yield Work(name, clips.sources, clips.samples, clips.duration_s, None, done, sentence)


def _stage_s(state: CurationState, name: str, clips: int) -> float | None:
    """Return the seconds of workers for a stage over clips, by what earlier runs measured; None if none did."""
    note = state.inputs.ledger.notes.read(RUN) or {}
    each_s = note.get("seconds_per_clip", {}).get(name)
    return None if each_s is None else each_s * clips


def _count_clips(state: CurationState, select: Callable[[int, pa.Table], Mask]) -> tuple[int, int, float]:
    """Return the number of sources, clips and seconds of clips that are wanted of all partitions."""
    state.results.place()
    sources, count, clip_s = 0, 0, 0.0
    for partition in range(state.results.closed.partitions):
        clips = state.results.closed.clips(partition)
        clips = filter_rows(clips, select(partition, clips))
        sources += len(np.unique(column(clips, "source").to_numpy()))
        count, clip_s = count + len(clips), clip_s + float(column(clips, "duration_s").to_numpy().sum())
    return sources, count, clip_s


def _scores(state: CurationState, redo: bool) -> Iterator[Work]:
    lacking = state.results.closed.lacking & state.inputs.select_sources(state.inputs.sources.keys())
    if redo:
        lacking &= ~state.results.closed.older
    if not lacking.any():
        return
    clips, clip_s = _clips(state.results.closed, lacking)
    names, count = ", ".join(sorted(ADDED)), int(lacking.sum())
    now = redo or wants_scores(state)
    sentence = f"{pluralize(clips, 'clip')} ({_time(clip_s)}) of {pluralize(count, 'source')}"
    sentence += f" made before this version of the scores {names}"
    sentence += (
        "; they are measured now, and no source is read"
        if now
        else ("; a new threshold on one of them, or --redo-older, measures them without reading a source")
    )
    yield Work("scores", count, clips, clip_s, None, now, sentence)


def _sources(state: CurationState, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Work]:
    waiting = state.results.closed.unclosed_uris() & state.inputs.sources.keys()
    if not waiting:
        return
    # Sources that were cut under the settings before, and now must be again.
    unclosed = state.inputs.select_sources(waiting)
    earlier_closed, changed = _before(state, before), _changed_keys(before, now)
    again = (
        unclosed & earlier_closed.closed
        if earlier_closed is not None and changed
        else np.zeros(len(unclosed), bool)
    )
    if earlier_closed is not None and again.any():
        clips, clip_s = _clips(earlier_closed, again)
        core_s, count = earlier_closed.total_cpu_s(again), int(again.sum())
        sentence = (
            f"{pluralize(count, 'source')} ({pluralize(clips, 'clip')}, {_time(clip_s)}) cut anew, since"
            f" {', '.join(changed)} changed:"
            f" {_core_time(core_s)} when they were cut before, and all later stages for clips that change"
        )
        yield Work("cut", count, clips, clip_s, core_s, True, sentence)
    # All others were never cut.
    if count := int((unclosed & ~again).sum()):
        yield Work(
            "new", count, 0, 0.0, None, True, f"to be cut, without a result yet: {pluralize(count, 'source')}"
        )


def _before(state: CurationState, before: Mapping[str, Any]) -> ClosedSources | None:
    """Return the sources that were cut under the dataset's configuration, by any revision; None if it is not known."""
    try:
        config = SourceStageConfig.model_validate(
            {name: before[name] for name in SourceStageConfig.model_fields if name in before}
        )
    except ValidationError:
        return None
    return ClosedSources(
        state.inputs.ledger, config_digest(config), state.inputs.listed, list(earlier_digests(config))
    )


def _changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    sections = SourceStageConfig.model_fields
    was, this = ({name: values.get(name) for name in sections} for values in (before, now))
    return sorted(key for key, *_ in differences(was, this))


def _stages(state: CurationState) -> Iterator[Work]:
    """Yield the stages over clips of which nothing is known under their present configuration, code and models."""
    new = [
        stage
        for stage in state.inputs.stages
        if stage.fingerprint not in state.inputs.ledger.entries.fingerprints(stage.name)
    ]
    for stage in new:
        sources, count, clip_s = _count_clips(state, partial(state.todo.select_lacking, stages=[stage]))
        if count:
            core_s = _stage_s(state, stage.name, count)
            sentence = (
                f"{stage.name}: its configuration, code or model is another; up to {pluralize(count, 'clip')}"
                f" ({_time(clip_s)}) go through it again"
            )
            yield Work(stage.name, sources, count, clip_s, core_s, True, sentence)


def _clips(closed: ClosedSources, selected: Mask) -> tuple[int, float]:
    """Return the number and the seconds of the clips that were cut from wanted sources."""
    count, seconds = 0, 0.0
    for partition in range(closed.partitions):
        clips = closed.clips(partition)
        clips = filter_rows(clips, selected[column(clips, "source").to_numpy()] & ~equal(clips, "sha256", ""))
        count, seconds = count + len(clips), seconds + float(column(clips, "duration_s").to_numpy().sum())
    return count, seconds


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"


def _core_time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} core-hours" if seconds >= 3600 else f"{seconds:.1f} s of one processor"


def sentences(work: Sequence[Work]) -> tuple[str, ...]:
    """Return the work in words."""
    return tuple(entry.said for entry in work)
