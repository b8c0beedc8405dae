"""Shards of a curation: those that stay, and the new ones, written where they are not there yet."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from reelweave.curate.config import ShardConfig, config_digest
from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import key_numbers
from reelweave.curate.run.runners.node_paths import output_paths
from reelweave.curate.run.runners.pipeline import Kind, Runner, Stage, run_sequentially, runner
from reelweave.curate.run.runners.progress import Progress
from reelweave.curate.run.shard import (
    STAGE,
    GroupNumbers,
    ShardOrder,
    ShardPlan,
    WriteShard,
    finished_shards,
    plans_of,
    revisions_of,
    shard_order,
    untouched_shards,
    with_rows,
)
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.columns import Mask, column, equal, filter_rows
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.run.tables.samples import with_vectors, without_vectors
from reelweave.curate.takedown.takedown import STAGE as REMOVAL
from reelweave.loader.dataset import Dataset, ShardRecord, next_shard_number
from reelweave.loader.dataset.tables.shard_rows import as_table

_SMALL_BYTES = 1e9
"""Shards of less than this in all are written by the driver: starting Ray would take longer."""

_ROWS = 1 << 16
"""Samples, at least, whose shards are planned together."""

_OF_ORDER = ("split", "bin", "key", "clip_bytes")
_PLACE = "place_in_shards"


def write_shards(
    state: CurationState,
    clips: Partitions,
    config: ShardConfig,
    keep_rejected: bool,
    progress: Callable[[Progress], None],
    kind: Callable[[], Kind],
) -> list[ShardRecord]:
    """Return the shards that hold every kept clip, written where they are not there yet.

    Args:
        state: Embeddings and places of the clips; shards of the present revision stay where they can.
        clips: Final state of all clips of the run.
        config: Size and groups of shards.
        keep_rejected: Whether clips that leave the dataset stay in the ledger.
        progress: Called after every shard.
        kind: Returns the runner; called for many bytes only.
    """
    present = state.inputs.dataset.shards() if state.inputs.dataset is not None else []
    older = state.todo.redoes_older and revisions_of(state.inputs.dataset).get("shard", 0) != config.REVISION
    stay = [] if older else _staying(state, clips, present)
    if state.inputs.dataset is not None and keep_rejected:
        _rescue(state, state.inputs.dataset, clips, stay)
    new = NewShards(state, clips, stay, next_shard_number(present), config)
    return [*stay, *_write_shards(state.inputs.ledger, new, config_digest(config), progress, kind)]


class NewShards:
    """Plans of the shards that hold all kept clips but those in shards that stay.

    Their order follows from a few bytes of each clip; samples are brought into it on disk, where there are many.

    Args:
        state: Embeddings and places of the clips.
        clips: Final state of all clips of the run, in partitions.
        stay: Shards that stay.
        first_number: Number of the first new shard.
        config: Size and groups of shards.

    Attributes:
        order: TextPlaces of the samples in the shards.
    """

    def __init__(
        self,
        state: CurationState,
        clips: Partitions,
        stay: Sequence[ShardRecord],
        first_number: int,
        config: ShardConfig,
    ) -> None:
        self._state, self._clips, self._first_number = state, clips, first_number
        self._settled = TextPlaces(_keys(stay))
        group_numbers, parts = GroupNumbers(), []
        for table in clips:
            table = filter_rows(table.select(_OF_ORDER), self._new(table))
            sizes = column(table, "clip_bytes").to_numpy()
            parts.append((group_numbers.of(table), *key_numbers(column(table, "key")), sizes))
        self._firsts = np.cumsum([0, *(len(groups) for groups, *_ in parts)])
        groups, high, low, sizes = (np.concatenate(some) for some in zip(*parts, strict=True))
        del parts
        self.order: ShardOrder = shard_order(group_numbers.in_order()[groups], [high, low], sizes, config)

    def plans(self) -> Iterator[list[ShardPlan]]:
        """Yield the plans of all shards in order, those of some at a time."""
        ends = self.order.ends
        if len(ends) < 2:
            return
        # Consecutive shards that together have so many samples are planned together.
        group = (ends[1:] - 1) // _ROWS if self._clips.count > 1 else np.zeros(len(ends) - 1, np.int64)
        _, first_shards = np.unique(group, return_index=True)
        bounds = [*first_shards.tolist(), len(ends) - 1]
        store = Partitions(len(first_shards), pa.schema({}), self._clips.count > 1)
        for partition, table in enumerate(self._clips):
            samples = self._state.samples.of_clips(partition, table)
            samples = filter_rows(samples, self._unsettled_mask(samples))
            positions = self.order.places[self._firsts[partition] : self._firsts[partition + 1]]
            samples = without_vectors(samples.append_column(_PLACE, pa.array(positions)))
            store.scatter(samples, np.searchsorted(ends[first_shards], positions, "right") - 1)
        for store_index in range(store.count):
            samples = with_vectors(store.stack(store_index))
            positions = column(samples, _PLACE).to_numpy()
            first, after = bounds[store_index], bounds[store_index + 1]
            yield plans_of(
                samples.drop_columns([_PLACE]),
                positions,
                ends[first : after + 1].tolist(),
                self._first_number + first,
            )

    def _new(self, clips: pa.Table) -> Mask:
        return equal(clips, "state", "kept") & self._unsettled_mask(clips)

    def _unsettled_mask(self, clips: pa.Table) -> Mask:
        return self._settled.find(column(clips, "key")) < 0


def _keys(shards: Sequence[ShardRecord]) -> pa.Array:
    """Return the keys of the samples of shards, one after the other."""
    keys = [column(as_table(shard.rows), "key") for shard in shards]
    return pa.concat_arrays(keys) if keys else pa.array([], pa.string())


def _staying(state: CurationState, clips: Partitions, present: Sequence[ShardRecord]) -> list[ShardRecord]:
    """Return the shards of the present revision that stay as they are."""
    if not present:
        return []
    # Shards are compared in groups of so many samples that one fits in memory.
    sizes = [len(shard.rows) for shard in present]
    keys, group = TextPlaces(_keys(present)), np.cumsum([0, *sizes[:-1]]) // _ROWS
    count = int(group[-1]) + 1 if clips.count > 1 else 1
    store = Partitions(count, pa.schema({}), count > 1)
    of_sample = np.repeat(np.minimum(group, count - 1), sizes)
    # Kept clips that are in a shard today, beside the others of that group.
    for partition, table in enumerate(clips):
        samples = state.samples.of_clips(partition, table)
        rows = keys.find(column(samples, "key"))
        exists = rows >= 0
        store.scatter(without_vectors(filter_rows(samples, exists)), of_sample[rows[exists]])
    # A shard stays if every sample of it is as it was.
    staying: list[ShardRecord] = []
    for group_index in range(count):
        group_samples = store.read(group_index)
        if len(group_samples):
            group_shards = [
                shard
                for shard, shard_group in zip(present, group, strict=True)
                if count == 1 or shard_group == group_index
            ]
            staying += untouched_shards(group_shards, with_vectors(group_samples))
    return staying


def _write_shards(
    ledger: Ledger,
    new: NewShards,
    name: str,
    progress: Callable[[Progress], None],
    kind: Callable[[], Kind],
) -> list[ShardRecord]:
    """Write the shards of a configuration, whose digest is ``name``, that no earlier attempt finished."""
    closed = set(finished_shards(ledger, STAGE, name, ShardRecord))
    total, count = int(new.order.clip_bytes.sum()), len(new.order.clip_bytes)
    run: Runner | None = None
    samples: dict[str, int] = {}
    done = done_bytes = 0

    def report() -> None:
        progress(Progress("shard", done, count, done_bytes, total))

    needs = output_paths(ledger.storage)
    stage = Stage(STAGE, WriteShard(ledger, name), needs=needs)
    report()
    # Plans come in parts, as all samples' rows at once would not fit in memory.
    for plans in new.plans():
        weights = {plan.id: plan.clip_bytes for plan in plans}
        todo = [plan for plan in plans if plan.id not in closed]
        samples |= {plan.id: len(plan.samples) for plan in plans if plan.samples is not None}
        done += len(plans) - len(todo)
        done_bytes += sum(weights[plan_id] for plan_id in weights.keys() & closed)
        report()
        if not todo:
            continue
        run = run or (run_sequentially if total < _SMALL_BYTES else runner(kind()))
        for written in run(todo, [stage]):
            done += 1
            done_bytes += weights[written.task.id]
            report()
    # In the order of the plans, whoever finished first.
    finished = finished_shards(ledger, STAGE, name, ShardRecord)
    return [
        with_rows(ledger, STAGE, shard_id, finished[shard_id], count) for shard_id, count in samples.items()
    ]


def _rescue(state: CurationState, dataset: Dataset, clips: Partitions, stay: Sequence[ShardRecord]) -> None:
    """Copy clips out of shards that will be dropped into the ledger, so that a looser threshold can restore them."""
    staying = {shard.path for shard in stay}
    for table in clips:
        leaving = ~equal(table, "state", "kept") & ~equal(table, "stage", REMOVAL)
        ids = clip_ids(filter_rows(table, leaving))
        for clip_id, location in zip(ids.to_pylist(), state.stored.places_of(ids), strict=True):
            if location and location.shard not in staying:
                state.inputs.ledger.blobs.write_clip(clip_id, dataset.storage.read(*location))
