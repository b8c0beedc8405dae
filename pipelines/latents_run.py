"""A dataset's version with latents, from the training configuration to the published manifest."""

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.ledger import LEDGER, Ledger, digest
from curate.pipeline import runner
from curate.progress import STATUS, Progress
from curate.records import Row
from curate.run import remove_strays, versions
from loader.arrays import Places
from loader.blend.reading import is_blend_file
from loader.buckets import Assignment, assign, shapes_of
from loader.dataset import Content, Dataset, Manifest, ShardRecord, open_dataset, publish
from loader.dataset.latents import EMPTY_CONTEXT, LatentBucket, Latents, LatentText
from loader.dataset.manifest import MANIFEST
from loader.dataset.shard import npy_bytes
from loader.dataset.tables import to_rows
from loader.difference import first_difference
from loader.errors import RunError, UsageError
from loader.storage import Storage, open_storage
from pipelines.latents_work import EMPTY, STAGE, Loaded, Measure, WriteShard, stage
from pipelines.train_config import TrainRunConfig
from train.latents.choice import BucketFacts, choose
from train.latents.identity import text_identity, tokenizer_identity
from train.latents.plan import PlannedSample, PlannedShard, plan_shards
from train.latents.shard import ShardWriter

_NOTE = "latents"
_VERSIONED = ("torch", "diffusers", "transformers")
_HEAD_BYTES = 4096  # of a sample: its metadata, its words, headers


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        dataset: the new version.
        already_there: whether there was nothing to do.
    """

    dataset: Dataset
    already_there: bool


def make_latents(
    uri: str, out: str, config: TrainRunConfig, progress: Callable[[Progress], None] = lambda _: None
) -> Outcome:
    """Makes ``out``, a version of the dataset ``uri`` with latents; the same call finishes an interrupted run.

    Raises:
        UsageError: an encoder is not there, the configuration draws other frames at every pass, ``out`` holds
            something else, or nothing would be stored.
        RunError: the environment failed, or float16 cannot hold a number; what was done is kept for the next run.
    """
    source = _source(uri, config)
    storage = open_storage(out, config.storage)
    ledger = Ledger(storage)
    asked = _asked(source, config)
    if storage.stat(MANIFEST) is not None:
        finished = Dataset(storage, config.storage)
        _check_same(finished.manifest.config, asked, out)
        return Outcome(finished, already_there=True)
    note = _begun(storage, ledger, asked, out)
    assignment = assign(source.plan_index, config.stream.buckets)
    loaded = Loaded(config, context=asked["text"] is not None)
    if "facts" not in note:
        note = {"asked": asked, "facts": _facts(config, assignment, loaded, ledger)}
        ledger.write_note(_NOTE, note)
    latents = _described(source, config, assignment, asked, note["facts"])
    plans = plan_shards(_samples(source, config, assignment, latents), config.latents.max_shard_mb * 10**6)
    writer = ShardWriter(source.shard_storage, source.manifest.foreign is not None, storage, config.stream)
    stage_function = WriteShard(loaded, writer, ledger, digest(note))
    closed = _written(plans, stage_function, config, progress)
    shards = [_record(closed[plan.id]) for plan in plans]
    failed = {one["key"]: one["reason"] for plan in plans for one in closed[plan.id]["failed"]}
    if failed and len(failed) == source.manifest.totals.samples:
        raise RunError(f"no sample of {uri} could be encoded, the first: {next(iter(failed.values()))}")
    files = {}
    if latents.text is not None:
        files[EMPTY_CONTEXT] = npy_bytes(ledger.read_arrays(EMPTY)["context"])
    shards = [shard for shard in shards if shard.rows]
    remove_strays(storage, {shard.path for shard in shards})
    _published(source, storage, shards, failed, asked, latents, files)
    storage.delete_tree(LEDGER)
    storage.sweep()
    return Outcome(Dataset(storage, config.storage), already_there=False)


def _source(uri: str, config: TrainRunConfig) -> Dataset:
    if is_blend_file(uri):
        raise UsageError(f"{uri} is a blend; make a version of each of its datasets, and blend those")
    source = open_dataset(uri, config.storage)
    if source.latents is not None:
        raise UsageError(f"{uri} is a version with latents itself; make another from {source.latents.source}")
    carries = config.latents.clips or config.latents.on_the_fly or config.latents.device_hour_price is not None
    if source.manifest.foreign and carries:
        raise UsageError(
            f"{uri} is an index over tars of somebody else, whose clips are not carried: leave latents.clips,"
            " latents.on_the_fly and latents.device_hour_price unset"
        )
    buckets = config.stream.buckets
    names = {str(bucket) for bucket in assign(source.plan_index, buckets).buckets}
    if unknown := [name for name in config.latents.on_the_fly if name not in names]:
        raise UsageError(f"latents.on_the_fly: {unknown[0]} is no bucket; there are {', '.join(sorted(names))}")
    for place, one in enumerate(config.stream.curriculum.root if config.stream.curriculum else ()):
        if first_difference(shapes_of(buckets), shapes_of(one.buckets(buckets))):
            raise UsageError(
                f"stream.curriculum.{place} trains at other frames or sizes, and a version holds one of each clip: make"
                " a version for every stage, and train the stages one after the other"
            )
    return source


def _asked(source: Dataset, config: TrainRunConfig) -> dict[str, Any]:
    """Everything that the new version's content follows from, but measured seconds."""
    own = config.latents
    return {
        "latents": own.model_dump(mode="json", exclude=set(own.SPEED_ONLY)),
        "source_index": source.manifest.index_sha256,
        "tokenizer": tokenizer_identity(config.train.tokenizer),
        "text": text_identity(config.train) if own.context else None,
        "shapes": shapes_of(config.stream.buckets),
        "seed": config.stream.seed,
        "decoder": config.stream.decoder,
    }


def _begun(storage: Storage, ledger: Ledger, asked: dict[str, Any], out: str) -> dict[str, Any]:
    note: dict[str, Any] | None = ledger.read_note(_NOTE)
    if note is None:
        stray = next(storage.list(), None)
        if stray is not None:
            raise UsageError(f"{out} is not empty, it holds {stray.path}; choose another --out")
        ledger.write_note(_NOTE, {"asked": asked})
        return {}
    _check_same(note["asked"], asked, out)
    return note


def _check_same(there: dict[str, Any], asked: dict[str, Any], out: str) -> None:
    if differs := first_difference(there, asked):
        raise UsageError(f"{out} was made, or begun, otherwise: {differs}; choose another --out")


def _facts(config: TrainRunConfig, assignment: Assignment, loaded: Loaded, ledger: Ledger) -> list[Row]:
    """What the latents of each bucket are and cost, by bucket."""
    counts = np.bincount(assignment.bucket_of[assignment.bucket_of >= 0], minlength=len(assignment.buckets))
    rows = [
        {"bucket": list(_size(assignment, place)), "samples": count, "first": place == 0}
        for place, count in enumerate(counts.tolist())
    ]
    found = list(runner(config.latents.runner)(rows, [stage(Measure(loaded, ledger), config, len(rows))]))
    for fact in found:
        if "error" in fact:
            raise UsageError(fact["error"])
    return sorted(
        ({name: value for name, value in fact.items() if name != "timing"} for fact in found),
        key=lambda fact: list(fact["bucket"]),
    )


def _described(
    source: Dataset, config: TrainRunConfig, assignment: Assignment, asked: dict[str, Any], facts: Sequence[Row]
) -> Latents:
    """The manifest's section: which buckets are stored, and why."""
    own, cost = config.latents, config.stream.buckets.cost
    starts_N, clip_N = _starts(source, config, assignment), source.media.size
    buckets = []
    for place, fact in enumerate(facts):
        here = assignment.bucket_of == place
        samples = int(here.sum())
        views = float(_views(starts_N[here], config).mean()) if samples else 1.0
        latent_bytes = views * int(np.prod(fact["latent"])) * np.dtype(own.dtype).itemsize
        clip_bytes = float(clip_N[here].mean()) if samples else 0.0
        name = str(assignment.buckets[place])
        stored, why = choose(BucketFacts(name, fact["encode_s"], latent_bytes, clip_bytes, views), own)
        sample_s = None if cost is None else float(cost.sample_s(assignment.lengths[place]))
        frames, height, width = fact["bucket"]
        buckets.append(
            LatentBucket(
                frames=frames,
                height=height,
                width=width,
                samples=samples,
                latent=tuple(fact["latent"]) if stored else None,
                encode_s=fact["encode_s"],
                step_share=fact["encode_s"] / sample_s if sample_s and fact["encode_s"] else None,
                latent_bytes=round(latent_bytes),
                clip_bytes=round(clip_bytes),
                why=why,
            )
        )
    text = None
    if asked["text"] is not None:
        text = LatentText(encoder=asked["text"], empty=EMPTY_CONTEXT, **facts[0]["text"])
    chosen_N = np.array([one.latent is not None for one in buckets] + [False])[assignment.bucket_of]
    several = int((chosen_N & (starts_N > 1)).sum())
    if several and own.views is None:
        raise UsageError(
            f"{several} of {len(starts_N)} clips are longer than their bucket, and stream.buckets.sampling.mode="
            f"{config.stream.buckets.sampling.mode} takes other frames of them at every pass: set latents.views to how"
            " many choices are stored, or sampling.mode=all"
        )
    if text is None and not chosen_N.any():
        raise UsageError(f"nothing would be stored: {', '.join(f'{one.why}' for one in buckets[:1])}")
    return Latents(
        source=source.storage.root,
        source_index=asked["source_index"],
        tokenizer=asked["tokenizer"],
        text=text,
        shapes=asked["shapes"],
        seed=asked["seed"] if several else None,
        dtype=own.dtype,
        device=facts[0]["device"],
        buckets=tuple(buckets),
    )


def _starts(source: Dataset, config: TrainRunConfig, assignment: Assignment) -> Places:
    """Choices of frames that the bucket of each sample leaves; int64 [N]."""
    index = source.plan_index
    count_N = np.array([bucket.frames for bucket in assignment.buckets] + [1])[assignment.bucket_of]
    return config.stream.buckets.sampling.starts(index.frames, index.fps, count_N)


def _views(starts: Places, config: TrainRunConfig) -> NDArray[np.int64]:
    return np.where(starts > 1, config.latents.views or 1, 1)


def _samples(
    source: Dataset, config: TrainRunConfig, assignment: Assignment, latents: Latents
) -> list[PlannedSample]:
    own, itemsize = config.latents, np.dtype(config.latents.dtype).itemsize
    views_N, clip_N = _views(_starts(source, config, assignment), config), source.media.size
    samples = []
    for number, row in enumerate(to_rows(source.index)):
        place = int(assignment.bucket_of[number])
        bucket = None if place < 0 else _size(assignment, place)
        shape = None if bucket is None else latents.shape(*bucket)
        views = 0 if shape is None else int(views_N[number])
        clip = bucket is not None and (shape is None or own.clips)
        size = _HEAD_BYTES + views * int(np.prod(shape or (0,))) * itemsize
        size += int(clip_N[number]) if clip else 0
        context = bucket is not None and latents.text is not None
        if context and latents.text is not None:
            size += row["text_tokens"] * latents.text.width * itemsize
        samples.append(PlannedSample(row, bucket, views, context, clip, size))
    return samples


def _size(assignment: Assignment, place: int) -> tuple[int, int, int]:
    bucket = assignment.buckets[place]
    return bucket.frames, bucket.height, bucket.width


def _written(
    plans: Sequence[PlannedShard],
    function: WriteShard,
    config: TrainRunConfig,
    progress: Callable[[Progress], None],
) -> dict[str, Row]:
    """Writes what is not written yet; all of the ledger's entries, by shard."""
    ledger, fingerprint = function.ledger, function.fingerprint
    sizes = {plan.id: plan.size for plan in plans}
    done = {name for name in ledger.closed(STAGE, fingerprint) if name in sizes}
    before, began = sum(sizes[name] for name in done), time.monotonic()

    def report(current: str = "") -> None:
        filled, total = sum(sizes[name] for name in done), sum(sizes.values())
        gained, left = filled - before, total - filled
        eta_s = (time.monotonic() - began) * left / gained if gained else None
        now = Progress(STAGE, len(done), len(plans), filled, total, eta_s, current=current)
        progress(now)
        ledger.write_note(STATUS, {**asdict(now), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})

    report()
    rows = [plan.to_row() for plan in plans if plan.id not in done]
    for row in runner(config.latents.runner)(rows, [stage(function, config, len(rows))] if rows else []):
        done.add(row["id"])
        report(row["id"])
    closed = ledger.closed(STAGE, fingerprint)
    if missing := [plan.id for plan in plans if plan.id not in closed]:
        raise RunError(f"shard {missing[0]} gave no result; run the same command again")
    return closed


def _record(entry: Row) -> ShardRecord:
    return ShardRecord(entry["path"], entry["size"], entry["sha256"], entry["rows"])


def _published(
    source: Dataset,
    storage: Storage,
    shards: list[ShardRecord],
    failed: dict[str, str],
    asked: dict[str, Any],
    latents: Latents,
    files: dict[str, bytes],
) -> Manifest:
    scores = to_rows(source.scores)
    content = Content(
        accounting=[_accounted(row, failed) for row in to_rows(source.accounting)],
        scores=[{**row, "state": "failed"} if row["key"] in failed else row for row in scores],
        config=asked,
        versions={**versions(), **_versions()},
        removals=source.manifest.removals,
        latents=latents,
        files=files,
    )
    return publish(storage, shards, content)


def _accounted(row: Row, failed: dict[str, str]) -> Row:
    """The row of a span in the new version; a duplicate of a clip that failed points nowhere any more."""
    nothing = {"stage": STAGE, "score": None, "threshold": None, "duplicate_of": None}
    if row["state"] == "kept" and row["key"] in failed:
        return {**row, **nothing, "state": "failed", "reason": failed[row["key"]]}
    if row["state"] == "duplicate" and row["duplicate_of"] in failed:
        reason = f"duplicate of {row['duplicate_of']}, which could not be encoded"
        return {**row, **nothing, "state": "filtered", "reason": reason}
    return row


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
