"""Shards of a curation: those that stay, and the new ones, written where they are not there yet."""

from collections.abc import Callable, Sequence

from curate.config import fingerprint
from curate.records import Record
from curate.run.runners.pipeline import Kind, Stage, run_sequentially, runner
from curate.run.runners.progress import Progress
from curate.run.shard import STAGE, ShardPlan, WriteShard, plan_shards, untouched, written_shards
from curate.run.state import CurationState
from curate.takedown.takedown import STAGE as REMOVAL
from loader.dataset import Dataset, ShardRecord, next_shard_number

_SMALL_BYTES = 1e9
"""Shards of less than this in all are written by the driver: starting Ray would take longer."""


def write_shards(
    state: CurationState,
    records: Sequence[Record],
    progress: Callable[[Progress], None],
    kind: Callable[[], Kind],
) -> list[ShardRecord]:
    """Return the shards that hold every kept record, written where they are not there yet.

    Args:
        state: Embeddings and places of the clips; shards of the present revision stay where they can.
        records: Final records of the run.
        progress: Called after every shard.
        kind: Returns the runner; called for many bytes only.
    """
    kept = state.samples(records)
    present = state.dataset.shards() if state.dataset is not None else []
    stay = untouched(present, kept)
    settled = {row["key"] for shard in stay for row in shard.rows}
    if state.dataset is not None and state.config.run.keep_rejected:
        _rescue(state, state.dataset, records, stay)
    new = [one for one in kept if one.record.key not in settled]
    plans = plan_shards(new, state.config.shard, next_shard_number(present))
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


def _rescue(
    state: CurationState, dataset: Dataset, records: Sequence[Record], stay: Sequence[ShardRecord]
) -> None:
    """Copy clips out of shards that will be dropped into the ledger, so that a looser threshold can restore them."""
    staying = {shard.path for shard in stay}
    for record in records:
        place = state.places.get(record.clip_id)
        if place and place.shard not in staying and record.state != "kept" and record.stage != REMOVAL:
            state.ledger.write_clip(record.clip_id, dataset.storage.read(*place))
