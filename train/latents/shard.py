"""Writer of latent shards: reads, checks, decodes and encodes clips one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.prefetch import prefetch
from reelweave.loader.dataset import INDEX, Dataset, Row, Sample, ShardRecord, write_shard
from reelweave.loader.dataset.latents import CONTEXT, LATENT
from reelweave.loader.dataset.manifest import sha256
from reelweave.loader.dataset.samples.clip import TrainingSample, training_sample
from reelweave.loader.dataset.schema import PLACEMENT
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.read.decode import decode
from reelweave.loader.read.frame_times import variable_times
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import Storage
from reelweave.train.latents.cut_count import CutCount
from reelweave.train.latents.encoders import Encoders, UnusableError
from reelweave.train.latents.plan import PlannedSample, PlannedShard


@dataclass(frozen=True)
class Failed:
    """A sample that could not be encoded, with the reason."""

    key: str
    reason: str


class _Prepared(NamedTuple):
    """A sample with its pixels, or with an error."""

    planned: PlannedSample
    clip: TrainingSample | None
    views: list[NDArray[np.uint8]]
    fault: str


@dataclass(frozen=True)
class ShardWriter:
    """Deterministic writer of planned shards; the same plan gives the same bytes.

    Attributes:
        source: dataset of the clips.
        target: storage of the new shards.
        stream: decoding and frame sampling of clips.
    """

    source: Dataset
    target: Storage
    stream: StreamConfig

    def write(self, plan: PlannedShard, encoders: Encoders) -> tuple[ShardRecord, list[Failed], CutCount]:
        """Write a shard; samples that cannot be encoded are skipped and returned, captions that are cut off counted.

        Raises:
            RunError: a shard of the source is missing, or a value exceeds the stored dtype.
        """
        failed: list[Failed] = []
        cut_count = CutCount()

        def samples() -> Iterator[Sample]:
            nonlocal cut_count
            for prepared in prefetch(self._prepare(plan), 1):
                key = prepared.planned.row["key"]
                try:
                    yield _encode_sample(prepared, encoders)
                except UnusableError as error:
                    failed.append(Failed(key, str(error)))
                except MachineError:
                    raise
                except RunError as error:
                    raise RunError(f"sample {key}: {error}") from error
                if prepared.planned.context:
                    cut_count += encoders.count_cut(prepared.planned.row["caption"])

        record = write_shard(self.target, plan.number, samples())
        return record, failed, cut_count

    def _prepare(self, plan: PlannedShard) -> Iterator[_Prepared]:
        for planned in plan.samples(self.source.rows_at(plan.rows, INDEX.names)):
            clip, views, fault = None, [], ""
            if planned.bucket is not None and (planned.views or planned.clip):
                region = self._region(planned.row)
                try:
                    clip = self._clip(planned.row, region)
                    views = [self._pixels(planned, clip, view) for view in range(planned.views)]
                except MachineError:
                    raise
                except RunError as error:
                    fault = str(error)
            yield _Prepared(planned, clip, views, fault)

    def _region(self, row: Row) -> bytes:
        try:
            return self.source.shard_storage.read(row["shard"], row["offset"], row["size"])
        except FileNotFoundError as error:
            where = self.source.shard_storage.uri(row["shard"])
            raise RunError(f"{where} is missing; run `reelweave verify`") from error

    def _clip(self, row: Row, region: bytes) -> TrainingSample:
        if sha256(region) != row["sample_sha256"]:
            raise RunError("it is damaged: its bytes are not those whose checksum the dataset holds")
        clip = training_sample(region, self.source.manifest.foreign is not None, self.source.manifest.mds)
        return clip._replace(key=row["key"])  # foreign keys may be qualified by their tar

    def _pixels(self, planned: PlannedSample, clip: TrainingSample, view: int) -> NDArray[np.uint8]:
        """Return the pixels that training uses of a clip in its pass ``view``, uint8 [3, T, H, W]."""
        assert planned.bucket is not None
        row, (frames, height, width) = planned.row, planned.bucket
        words = f"{self.stream.seed}/{view}/{clip.key}"
        sampling = self.stream.buckets.sampling
        times_s = variable_times(clip) if sampling.mode == "fps" else None
        frames_T = sampling.frames(words, row["frames"], row["fps"], frames, times_s)
        video_CTHW = np.empty((3, frames, height, width), np.uint8)
        decode(clip.media, frames_T, video_CTHW, clip.upright, self.stream.decoder)
        return video_CTHW


def _encode_sample(prepared: _Prepared, encoders: Encoders) -> Sample:
    planned, clip, views, fault = prepared
    if fault:
        raise UnusableError(fault)
    arrays: dict[str, NDArray[Any]] = {}
    if views:
        arrays[LATENT] = np.stack([encoders.latent(view) for view in views])
    if planned.context:
        arrays[CONTEXT] = encoders.context(planned.row["caption"])
    row = {name: planned.row[name] for name in INDEX.names if name not in (*PLACEMENT, "embeddings")}
    return Sample(row, bytes(clip.media) if clip and planned.clip else None, arrays)
