"""Batches of a stream: microbatches, packs and optimizer steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.batch_rows import BatchRows
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import StepDenominator
from reelweave.loader.plan.position import Position

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class BadSample:
    """Sample that could not be used: another of its bucket replaces it, or it is missing in its batch.

    Attributes:
        key: key of the sample.
        shard: path of its shard.
        offset: byte offset of the sample in the shard.
        reason: explanation in words.
    """

    key: str
    shard: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"sample {self.key} in {self.shard} at byte {self.offset}: {self.reason}"


class ReadCounts(NamedTuple):
    """Numbers of a rank's reads.

    Attributes:
        retries: requests to remote storage that were sent again.
        cache_hits: reads that the disk cache answered.
        cache_misses: reads that it did not; 0 without a cache.
    """

    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def plus(self, other: "ReadCounts") -> "ReadCounts":
        """Return the counts added to those of another batch."""
        return ReadCounts(*map(sum, zip(self, other, strict=True)))


NO_READS = ReadCounts()


@dataclass(frozen=True, eq=False, repr=False)
class EncodedClips:
    """Encoded clips of B samples; ``media[number]`` is a view of one clip's bytes.

    Attributes:
        bytes_N: uint8, concatenated clips; one tensor, which DataLoader workers send through shared memory.
        offsets: start of each clip in `bytes_N`, and the end; B + 1 values.
        frames: int64 [T] per clip, numbers of the bucket's frames in display order.
    """

    bytes_N: torch.Tensor
    offsets: tuple[int, ...]
    frames: tuple[IndexArray, ...]

    def __repr__(self) -> str:
        return f"EncodedClips({len(self)} clips of {self.offsets[-1]} bytes)"

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.bytes_N[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Batch:
    """Samples of one forward pass on one rank: a `Microbatch` or a `Pack` of B samples.

    Attributes:
        keys: key of each sample.
        captions: caption of each sample.
        passes: number of earlier draws of each sample; dataset, key and pass identify the draw and seed its noise.
        step: optimizer step of the run, from 0.
        epoch: epoch, from 0.
        weight: factor of the mean loss: B over ``mean_samples``, or over ``step_samples``, as `denominator` says. With
            ``mean_samples`` the sums of weight x mean loss over all ranks average over the epoch's steps to the mean
            over its samples; with ``step_samples`` each sum is the mean over its step. 0 for a filler, which completes
            an epoch's last step and repeats samples that count elsewhere.
        step_samples: number of samples of the step on all ranks.
        mean_samples: mean samples per step of the epoch, or of its rest that is planned alike.
        slot: place among this rank's batches of the step, from 0.
        slots: number of this rank's batches of the step; ranks may differ.
        after: position of the stream behind this batch; within a step, the beginning of the step.
        bad: samples that could not be used: others of their bucket replace them, or their weight is `missing`.
        missing: weight of planned samples that are excluded, or that no other of their bucket could replace. They are
            left out of the batch; if nothing is left, it is a black filler of weight 0. In units of `weight`.
        denominator: divisor of `weight` and `missing`, "epoch" or "step".
        reads: numbers of this rank's reads since its last batch, including those for later batches.
        media: encoded clips, where the stream does not decode; there are no pixels then.
        contexts: stored text encoder output of each caption, [tokens, D]; None if none is stored.
        datasets: number of each sample's dataset in a blend; empty: all are of its first one, or of the only one.
        ranks: number of data-parallel ranks of the step.
        index_rows: rows of the index that the samples are; None in batches that no stream made. Read `rows`.
    """

    keys: tuple[str, ...]
    captions: tuple[str, ...]
    passes: tuple[int, ...]
    step: int
    epoch: int
    weight: float
    step_samples: int
    mean_samples: float
    slot: int
    slots: int
    after: Position
    bad: tuple[BadSample, ...] = ()
    missing: float = 0.0
    denominator: StepDenominator = "step"
    reads: ReadCounts = NO_READS
    media: EncodedClips | None = None
    contexts: tuple[torch.Tensor, ...] | None = None
    datasets: tuple[int, ...] = ()
    ranks: int = 1
    index_rows: BatchRows | None = None

    def __repr__(self) -> str:
        """Name every field; tensors by dtype and shape instead of their numbers."""
        values = ", ".join(f"{field.name}={_brief(getattr(self, field.name))}" for field in fields(self))
        return f"{type(self).__name__}({values})"

    @property
    def rows(self) -> BatchRows:
        """Index rows of the samples, replacements included: source, fps, size, crop, scores, attributes, ...

        Raises:
            UsageError: no stream made the batch.
        """
        if self.index_rows is None:
            raise UsageError(
                "this batch has no rows, since no stream made it; give it BatchRows(source, rows, buckets)"
            )
        return self.index_rows

    @property
    def draw_keys(self) -> tuple[str, ...]:
        """Name of each sample for its random numbers: its key, which datasets of a blend may share, and the dataset."""
        if not any(self.datasets):
            return self.keys
        # No key of a tar holds a NUL. Those of the first dataset draw as they do without a blend.
        named = zip(self.datasets, self.keys, strict=True)
        return tuple(f"{dataset}\0{key}" if dataset else key for dataset, key in named)

    @property
    def share(self) -> float:
        """Part of its step's samples that the batch holds, 0 for a filler: the weight whatever the denominator is."""
        return self._share_weight(self.weight)

    @property
    def average_weight(self) -> float:
        """Factor of the mean loss where a loop averages gradients over ranks and over this rank's batches of the step.

        It is `weight` x ranks x `slots`. DDP and FSDP average over ranks; Accelerate, Lightning's automatic
        optimization, transformers' Trainer and Megatron divide by the batches of a step, too.

        Raises:
            UsageError: the step is shared by work stealing, so that its number of batches is not known yet.
        """
        if not self.slots:
            raise UsageError(
                "average_weight needs the number of a rank's batches in the step, which work stealing leaves open: sum"
                " `weight` times the losses over ranks and batches instead"
            )
        return self.weight * self.ranks * self.slots

    @property
    def missing_share(self) -> float:
        """Part of its step's samples that is missing; all ranks' shares and missing shares of a step sum to 1."""
        return self._share_weight(self.missing)

    def _share_weight(self, weight: float) -> float:
        return weight if self.denominator == "step" else weight * self.mean_samples / self.step_samples

    @property
    def ends_step(self) -> bool:
        """True for the rank's last batch of an optimizer step."""
        return self.slot + 1 == self.slots

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Return the same batch with its tensors on a device; Lightning and Accelerate call it.

        Args:
            device: target of the tensors; other attributes stay.
            non_blocking: True to overlap copies from page-locked memory with work of the GPU.
        """
        return self._change(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the same batch with its tensors in page-locked memory; a DataLoader with pin_memory calls it."""
        return self._change(torch.Tensor.pin_memory)

    def _change(self, change: Change) -> Self:
        media = self.media and replace(self.media, bytes_N=change(self.media.bytes_N))
        return replace(self, media=media, contexts=self.contexts and tuple(map(change, self.contexts)))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Microbatch(Batch):
    """Samples of one bucket, padded to equal shape.

    Attributes:
        bucket: shape of the samples.
        length: S of the bucket, tokens per sample with text counted at its maximum.
        video_BCTHW: uint8 RGB; without frames if the stream does not decode or latents replace pixels.
        latents_BCTHW: stored latents of the samples; None if none are stored.
    """

    bucket: Bucket
    length: int
    video_BCTHW: torch.Tensor
    latents_BCTHW: torch.Tensor | None = None

    def _change(self, change: Change) -> Self:
        latents = self.latents_BCTHW
        return replace(
            super()._change(change),
            video_BCTHW=change(self.video_BCTHW),
            latents_BCTHW=None if latents is None else change(latents),
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Pack(Batch):
    """Samples of mixed shapes, images and videos, packed into one sequence.

    Attributes:
        buckets: shape of each sample.
        lengths: planned S of each sample; `cu_seqlens` of ``reelweave.loader.plan.packing`` turns them into offsets.
        videos: uint8 RGB [3, frames, height, width] per sample; images have one frame; without frames if the stream
            does not decode. Floating point [C, T, H, W] tensors are latents in place of pixels.
    """

    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    videos: tuple[torch.Tensor, ...]

    def _change(self, change: Change) -> Self:
        return replace(super()._change(change), videos=tuple(map(change, self.videos)))


@dataclass(frozen=True, eq=False)
class Step:
    """Microbatches or packs of one rank in one optimizer step; an iterable of them.

    The sum of ``batch.weight`` x mean loss of the batch, over all batches of all ranks, is the loss to differentiate.
    With ``batch.share`` in place of the weight, it is the mean loss of the step's samples, for logs.

    Attributes:
        batches: batches of this rank, at least one; ranks may differ in number. Fillers have weight 0.
    """

    batches: tuple[Microbatch | Pack, ...]

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def step(self) -> int:
        """Optimizer step of the run, from 0."""
        return self.batches[-1].step

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self.batches[-1].epoch

    @property
    def samples(self) -> int:
        """Number of samples of the step on all ranks."""
        return self.batches[-1].step_samples

    @property
    def own_samples(self) -> int:
        """Number of samples of the step on this rank, without fillers."""
        return sum(len(batch.keys) for batch in self.batches if batch.weight)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Return the same step with its tensors on a device (`Batch.to`)."""
        return replace(self, batches=tuple(batch.to(device, non_blocking) for batch in self.batches))

    def pin_memory(self) -> Self:
        """Return the same step with its tensors in page-locked memory."""
        return replace(self, batches=tuple(batch.pin_memory() for batch in self.batches))


class UpcomingMicrobatch(NamedTuple):
    """Planned microbatch or pack that some rank will read next.

    Attributes:
        buckets: shape of each sample.
        lengths: S of each sample.
        pixels: True per sample that comes as pixels, False for latents.
        contexts: True if text encoder outputs of the captions are stored.
    """

    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    pixels: tuple[bool, ...]
    contexts: bool


def _refuse_collation(*_: Any, **__: Any) -> NoReturn:
    """Refuse the batches that a DataLoader makes of batches where its ``batch_size`` is left at 1.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "a stream gives whole batches, and a StepLoader whole steps, which no DataLoader can batch again: set"
        " DataLoader(stream, batch_size=None)"
    )


# The map in which PyTorch looks up types of others; it has no public name.
default_collate_fn_map.update({Batch: _refuse_collation, Step: _refuse_collation})


def _brief(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple) and any(isinstance(item, torch.Tensor) for item in value):
        return f"({', '.join(map(_brief, value))})"
    return repr(value)
