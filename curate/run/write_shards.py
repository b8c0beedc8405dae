"""Shards of a curation: those that stay, and the new ones, written where they are not there yet."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from curate.config import fingerprint
from curate.run.runners.pipeline import Kind, Stage, run_sequentially, runner
from curate.run.runners.progress import Progress
from curate.run.shard import STAGE, ShardPlan, WriteShard, plan_shards, untouched, written_shards
from curate.run.state import CurationState
from curate.run.tables.clips import clip_ids
from curate.run.tables.columns import column, equal, kept, places_in
from curate.takedown.takedown import STAGE as REMOVAL
from loader.dataset import Dataset, ShardRecord, next_shard_number
from loader.dataset.tables.shard_rows import as_table

_SMALL_BYTES = 1e9
"""Shards of less than this in all are written by the driver: starting Ray would take longer."""


def write_shards(
    state: CurationState,
    clips: pa.Table,
    progress: Callable[[Progress], None],
    kind: Callable[[], Kind],
) -> list[ShardRecord]:
    """Return the shards that hold every kept clip, written where they are not there yet.

    Args:
        state: Embeddings and places of the clips; shards of the present revision stay where they can.
        clips: Final state of all clips of the run.
        progress: Called after every shard.
        kind: Returns the runner; called for many bytes only.
    """
    samples = state.samples(clips)
    present = state.dataset.shards() if state.dataset is not None else []
    stay = untouched(present, samples)
    if state.dataset is not None and state.config.run.keep_rejected:
        _rescue(state, state.dataset, clips, stay)
    for shard in stay:
        settled = column(as_table(shard.rows), "key")
        samples = kept(samples, places_in(column(samples, "key"), settled) < 0)
    plans = plan_shards(samples, state.config.shard, next_shard_number(present))
    return [*stay, *_written(state, plans, progress, kind)]


def _written(
    state: CurationState,
    plans: Sequence[ShardPlan],
    progress: Callable[[Progress], None],
    kind: Callable[[], Kind],
) -> list[ShardRecord]:
    ledger, name = state.ledger, fingerprint(state.config.shard)
    closed = written_shards(ledger, STAGE, name, ShardRecord)
    weights = {plan.id: plan.clip_bytes for plan in plans}
    total = sum(weights.values())
    done = {plan.id for plan in plans if plan.id in closed}

    def report() -> None:
        progress(Progress("shard", len(done), len(plans), sum(weights[one] for one in done), total))

    report()
    run = run_sequentially if total < _SMALL_BYTES else runner(kind())
    todo = [plan for plan in plans if plan.id not in done]
    for written in run(todo, [Stage(STAGE, WriteShard(ledger, name))]):
        done.add(written.task.id)
        report()
    closed = written_shards(ledger, STAGE, name, ShardRecord)
    return [closed[plan.id] for plan in plans]


def _rescue(state: CurationState, dataset: Dataset, clips: pa.Table, stay: Sequence[ShardRecord]) -> None:
    """Copy clips out of shards that will be dropped into the ledger, so that a looser threshold can restore them."""
    leaving = ~equal(clips, "state", "kept") & ~equal(clips, "stage", REMOVAL)
    staying = {shard.path for shard in stay}
    ids = clip_ids(kept(clips, leaving))
    for clip_id, place in zip(ids.to_pylist(), state.places_of(ids), strict=True):
        if place and place.shard not in staying:
            state.ledger.write_clip(clip_id, dataset.storage.read(*place))
