"""Assembly of a batch from its collated samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch

from reelweave.loader.batch import EncodedClips, Microbatch, Pack, ReadCounts
from reelweave.loader.batch_rows import BatchRows
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.plan.epoch_plan import EpochPlan, PlannedMicrobatch
from reelweave.loader.plan.policy import StepDenominator
from reelweave.loader.plan.position import Position
from reelweave.loader.read.collate import dtype_and_shape
from reelweave.loader.read.share import DecodedSlice, LoadedSample

_NO_FRAMES = (3, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class RankMicrobatch:
    """Planned microbatch of this rank with the facts of its step.

    Attributes:
        plan: plan of its epoch.
        micro: planned samples.
        buckets: shape of each sample.
        lengths: S of each sample.
        slots: number of this rank's microbatches in the step.
        samples: number of samples of the step on all ranks.
        packed: True if the samples make one packed sequence.
        before: position before the step.
        after: position behind the step.
    """

    plan: EpochPlan
    micro: PlannedMicrobatch
    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    slots: int
    samples: int
    packed: bool
    before: Position
    after: Position


def assemble_batch(
    part: DecodedSlice[RankMicrobatch],
    source: SampleSource,
    latents: Latents | None,
    decode: bool,
    denominator: StepDenominator,
    reads: ReadCounts,
) -> Microbatch | Pack:
    """Return the batch of a whole microbatch, without samples that could not be used and nothing replaces.

    Args:
        part: all samples of the microbatch.
        source: dataset or blend of the samples.
        latents: description of the stored latents to use; None for pixels.
        decode: False for encoded clips.
        denominator: divisor of the weights.
        reads: numbers of this rank's reads.
    """
    planned, loaded = part.planned, part.loaded
    used = [index for index, sample in enumerate(loaded) if not sample.lost]
    kept_indices = used or list(
        range(len(loaded))
    )  # a filler keeps the shape, since ranks wait for each other
    kept_samples, buckets = (
        [loaded[index] for index in kept_indices],
        tuple(planned.buckets[number] for number in kept_indices),
    )
    weight = _weight(planned, denominator)
    common = _facts(planned, loaded, kept_samples) | {"reads": reads, "denominator": denominator}
    common |= {
        "weight": weight * (len(used) / len(loaded)),
        "missing": weight * (1 - len(used) / len(loaded)),
    }
    rows_B = np.array([sample.row for sample in kept_samples], np.int64)
    common["index_rows"] = BatchRows(source, rows_B, buckets)
    contents = _choose_parts(torch.split(part.content, [sample.size for sample in loaded]), kept_indices)
    if latents is not None and latents.text is not None:
        texts = _choose_parts(torch.split(part.contexts, [sample.text for sample in loaded]), kept_indices)
        common["contexts"] = tuple(
            _view_bytes(text, latents.dtype, (-1, latents.text.width)) for text in texts
        )
    kinds = [dtype_and_shape(bucket, latents) for bucket in buckets]
    if not decode:
        frames = tuple(np.array(sample.frames) for sample in kept_samples)
        common["media"] = EncodedClips(_join_parts(part.content, contents), _offsets(kept_samples), frames)
        kinds, contents = [(kind, _NO_FRAMES) for kind, _ in kinds], [part.content[:0]] * len(kept_samples)
    if planned.packed:
        videos = tuple(
            _view_bytes(content, str(kind), shape)
            for content, (kind, shape) in zip(contents, kinds, strict=True)
        )
        lengths = tuple(planned.lengths[index] for index in kept_indices)
        return Pack(buckets=buckets, lengths=lengths, videos=videos, **common)
    [(kind, shape), *_] = kinds
    values = _join_parts(part.content, contents) if decode else part.content[:0]
    own_BCTHW = _view_bytes(values, str(kind), (len(buckets), *shape))
    if kind != np.uint8:
        common["latents_BCTHW"] = own_BCTHW
        own_BCTHW = torch.empty(len(buckets), *_NO_FRAMES, dtype=torch.uint8)
    return Microbatch(bucket=buckets[0], length=planned.lengths[0], video_BCTHW=own_BCTHW, **common)


def _weight(planned: RankMicrobatch, denominator: StepDenominator) -> float:
    """Return the planned weight of all samples of a microbatch."""
    weight = planned.micro.weight
    return weight if denominator == "step" else weight * planned.samples / planned.plan.mean_samples


def _facts(
    planned: RankMicrobatch, loaded: Sequence[LoadedSample], kept_samples: Sequence[LoadedSample]
) -> dict[str, Any]:
    """Return the attributes of any batch, but for its weight and content."""
    micro = planned.micro
    return {
        "keys": tuple(sample.key for sample in kept_samples),
        "captions": tuple(sample.caption for sample in kept_samples),
        "passes": tuple(sample.passed for sample in kept_samples),
        "datasets": tuple(sample.dataset for sample in kept_samples),
        "step": planned.before.step,
        "epoch": planned.before.epoch,
        "step_samples": planned.samples,
        "mean_samples": planned.plan.mean_samples,
        "slot": micro.slot,
        "slots": planned.slots,
        "ranks": planned.plan.layout.ranks,
        "after": planned.after if micro.slot + 1 == planned.slots else planned.before,
        "bad": tuple(chain.from_iterable(sample.bad for sample in loaded)),
    }


def _choose_parts(parts: Sequence[torch.Tensor], indices: Sequence[int]) -> list[torch.Tensor]:
    return [parts[index] for index in indices]


def _join_parts(joint: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return parts of a tensor as one; without a copy if they are all of it."""
    size = sum(map(len, parts))
    return joint if size == len(joint) else torch.cat(list(parts))


def _offsets(samples: Sequence[LoadedSample]) -> tuple[int, ...]:
    return (0, *accumulate(sample.size for sample in samples))


def _view_bytes(bytes_N: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return bytes viewed as numbers; copied if misaligned, such as behind pixels in a pack."""
    kind: torch.dtype = getattr(torch, dtype)
    if bytes_N.storage_offset() % kind.itemsize:
        bytes_N = bytes_N.clone()
    return bytes_N.view(kind).view(shape)
