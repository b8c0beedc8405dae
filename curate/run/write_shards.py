"""Shards of a curation: those that stay, and the new ones, written where they are not there yet."""

from collections.abc import Callable, Sequence

from curate.config import CurateConfig, fingerprint
from curate.ledger import Ledger
from curate.records import Record
from curate.run.shard import STAGE, ShardPlan, WriteShard, plan_shards, untouched, written_shards
from curate.run.state import CurationState
from curate.runners.pipeline import Stage, run_sequentially, runner
from curate.runners.progress import Progress
from curate.takedown.takedown import STAGE as REMOVAL
from loader.dataset import Dataset, ShardRecord, next_shard_number

_SMALL_BYTES = 1e9
"""Shards of less than this in all are written by the driver: starting Ray would take longer."""


def write_shards(
    records: Sequence[Record],
    state: CurationState,
    config: CurateConfig,
    ledger: Ledger,
    dataset: Dataset | None,
    progress: Callable[[Progress], None],
) -> list[ShardRecord]:
    """Return the shards that hold every kept record, written where they are not there yet.

    Args:
        records: Final records of the run.
        state: Embeddings and places of their clips.
        config: Limits of shards, and the runner.
        ledger: Staged clips.
        dataset: The present revision, whose shards stay where they can.
        progress: Called after every shard.
    """
    kept = [state.sample(record) for record in records if record.state == "kept"]
    present = dataset.shards() if dataset is not None else []
    stay = untouched(present, kept)
    settled = {row["key"] for shard in stay for row in shard.rows}
    if dataset is not None and config.run.keep_rejected:
        _rescue(records, stay, state, ledger, dataset)
    new = [one for one in kept if one.record.key not in settled]
    plans = plan_shards(new, config.shard, next_shard_number(present))
    return [*stay, *_written(plans, config, ledger, progress)]


def _written(
    plans: Sequence[ShardPlan], config: CurateConfig, ledger: Ledger, progress: Callable[[Progress], None]
) -> list[ShardRecord]:
    name = fingerprint(config.shard)
    closed = written_shards(ledger, STAGE, name, ShardRecord)
    weights = {plan.id: plan.clip_bytes for plan in plans}
    total = sum(weights.values())
    done = {plan.id for plan in plans if plan.id in closed}

    def report() -> None:
        filled = sum(weights[one] for one in done)
        progress(Progress("shard", len(done), len(plans), filled, total))

    report()
    run = run_sequentially if total < _SMALL_BYTES else runner(config.run.runner)
    todo = [plan for plan in plans if plan.id not in closed]
    for written in run(todo, [Stage(STAGE, WriteShard(ledger, name))]):
        done.add(written.task.id)
        report()
    closed = written_shards(ledger, STAGE, name, ShardRecord)
    return [closed[plan.id] for plan in plans]


def _rescue(
    records: Sequence[Record],
    stay: Sequence[ShardRecord],
    state: CurationState,
    ledger: Ledger,
    dataset: Dataset,
) -> None:
    """Copy clips out of shards that will be dropped into the ledger, so that a looser threshold can restore them."""
    staying = {shard.path for shard in stay}
    for record in records:
        place = state.places.get(record.clip_id)
        if place and place.shard not in staying and record.state != "kept" and record.stage != REMOVAL:
            ledger.write_clip(record.clip_id, dataset.storage.read(*place))
