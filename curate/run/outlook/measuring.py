"""Scores that clips of closed sources lack, since they were cut before these scores came: which are measured now."""

from collections.abc import Iterator, Set

import numpy as np

from reelweave.curate.filters.decision import thresholds
from reelweave.curate.ledger.records import source_summary
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.columns import Mask, column, equal, filter_rows, texts_of
from reelweave.curate.source_pass.cut_source import STAGE, source_id
from reelweave.curate.source_pass.tasks import MeasureTask


def wants_scores(state: CurationState) -> bool:
    """Return whether a threshold is set on a score that some clips were never measured for, or all are asked for."""
    return state.todo.redoes_older or not state.results.closed.never_measured.isdisjoint(
        threshold.name for threshold in thresholds(state.inputs.judge.filters)
    )


def measure_tasks(state: CurationState, chosen: Set[str]) -> tuple[int, Iterator[MeasureTask]]:
    """Return the sources whose clips are to be measured again: a number, and the tasks, made one by one.

    Sources of which such a clip is neither staged nor in a shard count as not done, and so are cut anew.

    Args:
        state: State of the curation, which this changes.
        chosen: URIs of the sources that count.
    """
    lacking = state.results.closed.lacking & state.inputs.select_sources(chosen)
    if not lacking.any() or not wants_scores(state):
        return 0, iter(())
    lost = _sources_with_loss(state, lacking)
    state.results.closed.drop([state.inputs.listed[index].uri for index in lost.tolist()])
    lacking[lost] = False
    return int(lacking.sum()), _tasks(state, lacking)


def _sources_with_loss(state: CurationState, selected: Mask) -> np.ndarray:
    """Return the numbers of wanted sources of which a clip is lost."""
    staged, lost = state.stored.staged_ids(), [np.zeros(0, np.int64)]
    for partition in range(state.results.closed.partitions):
        clips = state.results.closed.clips(partition)
        clips = filter_rows(clips, selected[column(clips, "source").to_numpy()] & ~equal(clips, "sha256", ""))
        lost.append(
            column(clips, "source").to_numpy()[~state.stored.are_at_hand(clips, staged)].astype(np.int64)
        )
    return np.unique(np.concatenate(lost))


def _tasks(state: CurationState, selected: Mask) -> Iterator[MeasureTask]:
    sources = [state.inputs.listed[index] for index in np.flatnonzero(selected).tolist()]
    by_id = {source_id(source): source for source in sources}
    closed = state.results.closed
    for fingerprint in closed.fingerprints:
        for identity, summary in state.inputs.ledger.entries.latest(STAGE, fingerprint, source_summary):
            source = by_id.get(identity)
            if source is None or closed.fingerprint(closed.numbers[source.uri]) != fingerprint:
                continue
            ids = [record.clip_id for record in summary.records if record.sha256]
            locations = zip(ids, state.stored.places_of(texts_of(ids)), strict=True)
            yield MeasureTask(
                source,
                summary,
                fingerprint,
                {clip_id: location for clip_id, location in locations if location is not None},
            )
