"""Stages of `reelweave latents`: measure buckets, write shards. Encoders are loaded at their first use."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.pipeline import Stage
from reelweave.curate.run.runners.ray_cluster import cluster_size
from reelweave.curate.run.shard import close_shard
from reelweave.loader.dataset import ShardRecord
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.train.latents.cut_count import CutCount
from reelweave.train.latents.encoders import Encoders
from reelweave.train.latents.plan import PlannedShard
from reelweave.train.latents.shard import Failed, ShardWriter

STAGE = "latents"
EMPTY = "empty-context"


@dataclass(frozen=True)
class BucketTask:
    """A bucket to measure, frames x height x width, and its number of samples."""

    bucket: tuple[int, int, int]
    samples: int


@dataclass(frozen=True)
class TextWidths:
    """Widths of a text encoder's contexts."""

    width: int
    pooled_width: int


@dataclass(frozen=True)
class MeasuredBucket:
    """Latents of a bucket: shape and cost.

    Attributes:
        bucket: Frames, height and width.
        latent: Shape of a latent.
        encode_s: Seconds to encode one sample; None where the bucket has no sample.
        device: Name of the device that encoded.
        text: Widths of contexts; None where no captions are encoded.
    """

    bucket: tuple[int, int, int]
    latent: tuple[int, ...]
    encode_s: float | None
    device: str
    text: TextWidths | None


@dataclass(frozen=True)
class RefusedBucket:
    """A bucket that cannot be encoded as configured, and why."""

    error: str


@dataclass(frozen=True)
class EncodedShard(ShardRecord):
    """A written shard, the samples that could not be encoded, and the number of captions that are cut off."""

    failed: tuple[Failed, ...]
    cut_count: CutCount = field(default_factory=CutCount)  # earlier versions counted none


@dataclass(frozen=True)
class WrittenShard:
    """A shard that is written and in the ledger, by identity of its plan."""

    id: str


LatentsTask = BucketTask | MeasuredBucket | RefusedBucket | PlannedShard | WrittenShard


class LoadedEncoders:
    """Encoders of a configuration, loaded on demand and never pickled.

    Args:
        config: configuration of the run.
        context: true if captions are encoded.
    """

    def __init__(self, config: TrainRunConfig, context: bool) -> None:
        self._config, self._context = config, context
        self._encoders: Encoders | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoders": None}

    def get(self) -> Encoders:
        """Return the encoders, loaded at the first call.

        Raises:
            UsageError: an encoder cannot be loaded, see `Encoders`.
        """
        if self._encoders is None:
            self._encoders = Encoders(self._config.train.encoders, self._config.latents, self._context)
        return self._encoders


@dataclass(frozen=True)
class Measure:
    """Function from buckets to the shape and cost of their latents."""

    loaded: LoadedEncoders

    def __call__(self, tasks: Sequence[LatentsTask]) -> list[LatentsTask]:
        """Measure each bucket; a configuration that cannot work is a result, too."""
        return [self._measure(task) for task in tasks if isinstance(task, BucketTask)]

    def _measure(self, task: BucketTask) -> MeasuredBucket | RefusedBucket:
        try:
            encoders = self.loaded.get()
            latent = (encoders.tokenizer.channels, *encoders.tokenizer.latent_size(task.bucket))
        except UsageError as error:
            return RefusedBucket(str(error))
        words = encoders.text
        text = None if words is None else TextWidths(words.width, words.pooled_width)
        encode_s = encoders.encode_s(*task.bucket) if task.samples else None
        return MeasuredBucket(task.bucket, latent, encode_s, encoders.device_name, text)


@dataclass(frozen=True)
class WriteLatentShard:
    """Function that writes planned shards and records them in the ledger.

    The first shard comes with the context of the empty caption.
    """

    loaded: LoadedEncoders
    writer: ShardWriter
    ledger: Ledger
    fingerprint: str

    def __call__(self, tasks: Sequence[LatentsTask]) -> list[LatentsTask]:
        return [self._write(task) for task in tasks if isinstance(task, PlannedShard)]

    def _write(self, plan: PlannedShard) -> WrittenShard:
        encoders = self.loaded.get()
        if encoders.text is not None and plan.number == 0:
            self.ledger.blobs.write_arrays(EMPTY, {"context": encoders.context("")})
        record, failed, cut_count = self.writer.write(plan, encoders)
        encoded = EncodedShard(record.path, record.size, record.sha256, record.rows, tuple(failed), cut_count)
        close_shard(self.ledger, STAGE, self.fingerprint, plan.id, encoded)
        return WrittenShard(plan.id)


def stage(function: Measure | WriteLatentShard, config: TrainRunConfig) -> Stage[LatentsTask]:
    """Return the stage of a runner: a worker per GPU, or as many as there is room for and work."""
    own = config.latents
    if own.runner == "sequential":
        return Stage(STAGE, function)
    size = cluster_size()
    cpus, gpus = size.cpus, size.gpus
    on_gpus = gpus >= 1 and config.train.device != "cpu"
    threads = min(float(own.threads), cpus)
    return Stage(STAGE, function, keeps=True, most=own.workers, cpus=threads, gpus=float(on_gpus))
