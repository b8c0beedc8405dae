"""Creation of a dataset version with latents, from the training configuration to the manifest."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import from_json
from reelweave.curate.run.curate import write_beside
from reelweave.curate.run.runners.pipeline import runner, startable
from reelweave.curate.run.runners.progress import Progress, write_status
from reelweave.curate.run.shard import finished_shards, with_rows
from reelweave.loader.blend.reading import is_blend_file
from reelweave.loader.buckets.assignment import Assignment, assign, buckets_of, shapes_of
from reelweave.loader.dataset import Dataset, ShardRecord, open_dataset, settle
from reelweave.loader.dataset.latents import empty_path
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.dataset.shard import npy_bytes
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.settings import differences, first_difference
from reelweave.loader.storage import Storage, hold_lease, open_storage
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.latents.buckets import describe_latents, plan_shards, size_of
from reelweave.pipelines.latents.publish import publish_version
from reelweave.pipelines.latents.work import (
    EMPTY,
    STAGE,
    BucketTask,
    EncodedShard,
    LoadedEncoders,
    Measure,
    MeasuredBucket,
    RefusedBucket,
    WriteLatentShard,
    WrittenShard,
    stage,
)
from reelweave.train.latents.check import check_encoders
from reelweave.train.latents.cut_count import CutCount
from reelweave.train.latents.identity import text_identity, tokenizer_identity
from reelweave.train.latents.plan import PlannedShard
from reelweave.train.latents.shard import ShardWriter

_NOTE = "latents"


@dataclass(frozen=True)
class LatentsOutcome:
    """Result of `make_latents`.

    Attributes:
        dataset: the new version.
        already_there: true if there was nothing to do.
        cut_count: captions whose contexts are stored, and those that the text encoder cuts off; none if already there.
    """

    dataset: Dataset
    already_there: bool
    cut_count: CutCount


def make_latents(
    uri: str,
    out: str,
    config: TrainRunConfig,
    progress: Callable[[Progress], None] = lambda _: None,
    beside: Mapping[str, bytes] | None = None,
) -> LatentsOutcome:
    """Make ``out``, a version of the dataset ``uri`` with latents; the same call finishes an interrupted run.

    Args:
        uri: folder or prefix of the dataset, which is only read.
        out: folder or prefix of the version.
        config: configuration of the training run that will read it.
        progress: called as the work goes on.
        beside: further files of the version, see `reelweave.curate.run.curate.curate`.

    Raises:
        UsageError: an encoder is not there, ``out`` holds something else, or nothing would be stored.
        RunError: the environment failed, or float16 cannot hold a number; what was done is kept for the next run.
    """
    source = _source(uri, config)
    check_encoders(config.train.encoders, config.latents.context)
    storage = open_storage(out, config.storage)
    with hold_lease(storage, "reelweave latents") as held:
        cut_count = _make(source, held, out, config, progress)
        write_beside(held, beside or {}, only_missing=cut_count is None)
    return LatentsOutcome(Dataset(storage, config.storage), cut_count is None, cut_count or CutCount())


def _make(
    source: Dataset,
    storage: Storage,
    out: str,
    config: TrainRunConfig,
    progress: Callable[[Progress], None],
) -> CutCount | None:
    """Make the version while holding its lease; return the captions that are cut off, or None if it already existed."""
    ledger = Ledger(storage)
    asked = _asked_settings(source, config)
    if asked["text"] is not None and any(name != "default" for name in config.stream.captions):
        raise UsageError(
            "stream.captions draws one of several captions, and a version stores the context of one: leave it out, or"
            " set latents.context=false, so that captions are encoded in training"
        )
    # Finished before: the same settings change nothing, others are refused.
    if storage.stat(MANIFEST) is not None:
        finished = Dataset(storage, config.storage)
        if finished.latents is None:
            raise UsageError(
                f"{out} was made otherwise: it is a dataset without latents; choose another --out"
            )
        _check_same(finished.manifest.config, asked, out)
        _tidy(finished)
        return None
    # What was measured when it was begun decides the shards; a repeated command reads it.
    note = _begun_note(storage, ledger, asked, out)
    config = _startable(config)
    assignment = assign(source.plan_index, config.stream.buckets)
    loaded = LoadedEncoders(config, context=asked["text"] is not None)
    if note is None:
        measured = _measure_buckets(config, assignment, loaded)
    else:
        measured = [from_json(MeasuredBucket, values) for values in note["facts"]]
    latents = describe_latents(source, config, assignment, asked, measured)
    if note is None:
        note = {"asked": asked, "facts": [asdict(one) for one in measured]}
        ledger.notes.write(_NOTE, note)
    # Shards that are whole already are not written again.
    plans = plan_shards(source, config, assignment, latents)
    writer = ShardWriter(source, storage, config.stream)
    stage_function = WriteLatentShard(loaded, writer, ledger, digest(note))
    shards = _write_shards(plans, stage_function, config, progress)
    failed = {one.key: one.reason for shard in shards for one in shard.failed}
    if failed and len(failed) == source.manifest.totals.samples:
        raise RunError(
            f"no sample of {source.storage.root} could be encoded, the first: {next(iter(failed.values()))}"
        )
    # The context of an empty caption is a file of the dataset.
    files = {}
    if latents.text is not None:
        context = npy_bytes(ledger.blobs.read_arrays(EMPTY)["context"])
        text = latents.text.model_copy(update={"empty": empty_path(context)})
        latents, files = latents.model_copy(update={"text": text}), {text.empty: context}
    filled: list[ShardRecord] = [shard for shard in shards if shard.rows]
    publish_version(source, storage, filled, failed, asked, latents, files)
    _tidy(Dataset(storage, config.storage))
    return sum((shard.cut_count for shard in shards), CutCount())


def _tidy(made: Dataset) -> None:
    settle(made)
    made.storage.delete_tree(LEDGER)
    made.storage.sweep()


def _source(uri: str, config: TrainRunConfig) -> Dataset:
    if is_blend_file(uri):
        raise UsageError(f"{uri} is a blend; make a version of each of its datasets, and blend those")
    source = open_dataset(uri, config.storage)
    if source.latents is not None:
        raise UsageError(f"{uri} is a version with latents itself; make another from {source.latents.source}")
    # Clips of others' tars stay where they are: a version of them holds latents alone.
    carries = (
        config.latents.clips or config.latents.on_the_fly or config.latents.device_hour_price is not None
    )
    if source.manifest.foreign and carries:
        raise UsageError(
            f"{uri} is an index over tars of others, whose clips are not carried: leave latents.clips,"
            " latents.on_the_fly and latents.device_hour_price unset"
        )
    # A version holds one shape of each clip.
    buckets = config.stream.buckets
    names = {str(bucket) for bucket in buckets_of(buckets)}
    if unknown := [name for name in config.latents.on_the_fly if name not in names]:
        raise UsageError(
            f"latents.on_the_fly: {unknown[0]} is no bucket; there are {', '.join(sorted(names))}"
        )
    for place, one in enumerate(config.stream.curriculum.root if config.stream.curriculum else ()):
        if first_difference(shapes_of(buckets), shapes_of(one.buckets(buckets))):
            raise UsageError(
                f"stream.curriculum.{place} trains at other frames or sizes, and a version holds one of each clip: make"
                " a version for every stage, and train the stages one after the other"
            )
    return source


def _asked_settings(source: Dataset, config: TrainRunConfig) -> dict[str, Any]:
    """Return all settings that decide the new version's content, except measured seconds."""
    own = config.latents
    return {
        "latents": own.model_dump(mode="json", exclude=set(own.SPEED_ONLY)),
        "source_index": source.manifest.index_sha256,
        "tokenizer": tokenizer_identity(config.train.tokenizer),
        "text": text_identity(config.train.encoders) if own.context else None,
        "shapes": shapes_of(config.stream.buckets),
        "seed": config.stream.seed,
        "decoder": config.stream.decoder,
    }


def _begun_note(storage: Storage, ledger: Ledger, asked: dict[str, Any], out: str) -> dict[str, Any] | None:
    """Return the note of an interrupted run, None if there is none."""
    note: dict[str, Any] | None = ledger.notes.read(_NOTE)
    if note is not None:
        _check_same(note["asked"], asked, out)
    elif (stray := next(storage.list(), None)) is not None:
        raise UsageError(f"{out} is not empty, it holds {stray.path}; choose another --out")
    return note


def _startable(config: TrainRunConfig) -> TrainRunConfig:
    """Return the configuration with a runner that works here."""
    kind = startable(config.latents.runner).kind
    return config.model_copy(update={"latents": config.latents.model_copy(update={"runner": kind})})


def _check_same(there: dict[str, Any], asked: dict[str, Any], out: str) -> None:
    found = next(differences(_by_key(there), _by_key(asked)), None)
    if found is None:
        return
    key, before, now = found
    if key == "dataset":
        said = "its dataset has changed since, or was another one"
    elif key.endswith("files"):
        said = f"the files of {key.rpartition('.')[0]} were others"
    else:
        said = f"{key} was {before!r} and is {now!r} now"
    raise UsageError(f"{out} was made, or begun, otherwise: {said}; choose another --out")


def _by_key(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what was asked under the keys of a training configuration."""
    return {
        "dataset": asked["source_index"],
        "latents": asked["latents"],
        "stream": {"buckets": asked["shapes"], "seed": asked["seed"], "decoder": asked["decoder"]},
        "train": {"tokenizer": asked["tokenizer"], "text": asked["text"]},
    }


def _measure_buckets(
    config: TrainRunConfig, assignment: Assignment, loaded: LoadedEncoders
) -> list[MeasuredBucket]:
    """Return the shape and cost of the latents of each bucket, sorted by bucket."""
    counts = np.bincount(assignment.bucket_of[assignment.bucket_of >= 0], minlength=len(assignment.buckets))
    tasks = [BucketTask(size_of(assignment, place), count) for place, count in enumerate(counts.tolist())]
    measured = []
    for done in runner(config.latents.runner)(tasks, [stage(Measure(loaded), config)]):
        if isinstance(done.task, RefusedBucket):
            raise UsageError(done.task.error)
        if isinstance(done.task, MeasuredBucket):
            measured.append(done.task)
    return sorted(measured, key=lambda one: one.bucket)


def _write_shards(
    plans: Sequence[PlannedShard],
    function: WriteLatentShard,
    config: TrainRunConfig,
    progress: Callable[[Progress], None],
) -> list[EncodedShard]:
    """Write the shards that are not written yet; return all, in order."""
    # Shards that an interrupted run wrote count as done, and not for the rate.
    ledger, fingerprint = function.ledger, function.fingerprint
    sizes = {plan.id: plan.size for plan in plans}
    done = {name for name in finished_shards(ledger, STAGE, fingerprint, EncodedShard) if name in sizes}
    before, began = sum(sizes[name] for name in done), time.monotonic()

    def report(current: str = "") -> None:
        filled, total = sum(sizes[name] for name in done), sum(sizes.values())
        gained, left = filled - before, total - filled
        eta_s = (time.monotonic() - began) * left / gained if gained else None
        now = Progress(STAGE, len(done), len(plans), filled, total, eta_s, current=current)
        progress(now)
        if fault := write_status(ledger, now):
            progress(replace(now, current=fault))

    report()
    todo = [plan for plan in plans if plan.id not in done]
    for left in runner(config.latents.runner)(todo, [stage(function, config)] if todo else []):
        if isinstance(left.task, WrittenShard):
            done.add(left.task.id)
            report(left.task.id)
    # In the order of the plan, whoever finished first.
    closed = finished_shards(ledger, STAGE, fingerprint, EncodedShard)
    if missing := [name for name in sizes if name not in closed]:
        raise RunError(f"shard {missing[0]} gave no result; run the same command again")
    written = [(name, closed[name], len(plan.rows)) for name, plan in zip(sizes, plans, strict=True)]
    return [with_rows(ledger, STAGE, name, one, count - len(one.failed)) for name, one, count in written]
