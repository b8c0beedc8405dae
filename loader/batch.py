"""What a stream hands out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch

from loader.base.arrays import Places
from loader.buckets.assignment import Bucket
from loader.plan.position import Position

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be used; another of its bucket stands in for it.

    Attributes:
        key: of the sample.
        shard: where it lies.
        offset: of its bytes there.
        reason: in words.
    """

    key: str
    shard: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"sample {self.key} in {self.shard} at byte {self.offset}: {self.reason}"


@dataclass(frozen=True, eq=False)
class EncodedClips:
    """The encoded clips of B samples; ``media[number]`` is one of them, a view of the bytes.

    Attributes:
        bytes_N: uint8, one clip after the other: a single tensor, which a worker process of a DataLoader hands over
            in shared memory.
        offsets: where each clip begins in it, and the end; B + 1 of them.
        frames: int64 [T] of each clip, which of its frames the bucket takes, in shown order.
    """

    bytes_N: torch.Tensor
    offsets: tuple[int, ...]
    frames: tuple[Places, ...]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.bytes_N[self.offsets[number] : self.offsets[number + 1]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """What one rank trains on at once: a `Microbatch` or a `Pack` of B samples.

    Attributes:
        keys: of the samples.
        captions: of the samples.
        passes: how often each sample was drawn before; with the key it names the draw and seeds its noise.
        step: of the run, from 0.
        epoch: from 0.
        weight: B over ``step_samples``; 0 for a filler, which evens out an epoch's last step and repeats
            samples that count elsewhere. The sum of weight x mean loss over the step's batches on all ranks is
            the step's mean loss.
        step_samples: samples of the step on all ranks.
        mean_samples: of the epoch's steps, or of the rest of it that is planned alike. The step's gradient times
            step_samples / mean_samples has the mean over all samples of the epoch as its own mean over steps.
        slot: its place among this rank's batches of the step, from 0.
        slots: this rank's batches of the step; other ranks may have more or fewer.
        after: where the stream stands behind it; within a step, at the step's beginning.
        bad: samples that others stand in for here.
        media: the encoded clips, where the stream does not decode; there are no pixels then.
        contexts: what the text encoder made of each caption, [tokens, D], where it is stored.
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
    media: EncodedClips | None = None
    contexts: tuple[torch.Tensor, ...] | None = None

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer's turn comes after it."""
        return self.slot + 1 == self.slots

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Return the same batch with its tensors on a device, as Lightning and Accelerate ask for it.

        Args:
            device: where the tensors go; what is not a tensor stays as it is.
            non_blocking: whether copies from page-locked memory run beside the GPU's work.
        """
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the same batch with its tensors in page-locked memory; a DataLoader with pin_memory calls it."""
        return self._changed(torch.Tensor.pin_memory)

    def _changed(self, change: Change) -> Self:
        media = self.media and replace(self.media, bytes_N=change(self.media.bytes_N))
        return replace(self, media=media, contexts=self.contexts and tuple(map(change, self.contexts)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Microbatch(Batch):
    """Samples of one shape.

    Attributes:
        bucket: the shape.
        length: S of the bucket, tokens of one sample with text counted at its cap.
        video_BCTHW: uint8 RGB; of no frames where the stream does not decode, or latents stand for pixels.
        latents_BCTHW: of the bucket's samples, where they are stored.
    """

    bucket: Bucket
    length: int
    video_BCTHW: torch.Tensor
    latents_BCTHW: torch.Tensor | None = None

    def _changed(self, change: Change) -> Self:
        latents = self.latents_BCTHW
        return replace(
            super()._changed(change),
            video_BCTHW=change(self.video_BCTHW),
            latents_BCTHW=None if latents is None else change(latents),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Pack(Batch):
    """Samples of any shapes, images and videos, that make one sequence.

    Attributes:
        buckets: the shape of each.
        lengths: S of each as it was planned; with `cu_seqlens` of ``loader.plan.packing`` where each begins.
        videos: uint8 RGB [3, frames, height, width] each; an image has one frame; of no frames where the stream does
            not decode. Floating point, [C, T, H, W], are latents that stand for pixels.
    """

    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    videos: tuple[torch.Tensor, ...]

    def _changed(self, change: Change) -> Self:
        return replace(super()._changed(change), videos=tuple(map(change, self.videos)))


@dataclass(frozen=True, eq=False)
class Step:
    """What one rank does in one optimizer step: an iterable of its microbatches or packs.

    The sum of ``batch.weight`` x mean loss of the batch, over the batches and over all ranks, is the mean loss of the
    step's samples. Who sums the losses of samples divides the gradients by ``samples`` instead.

    Attributes:
        batches: of this rank, at least one; other ranks may have more or fewer. Fillers have weight 0.
    """

    batches: tuple[Microbatch | Pack, ...]

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def step(self) -> int:
        """Number of the step in the run, from 0."""
        return self.batches[-1].step

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self.batches[-1].epoch

    @property
    def samples(self) -> int:
        """Samples of the step on all ranks."""
        return self.batches[-1].step_samples

    @property
    def own_samples(self) -> int:
        """Samples of the step on this rank; what a filler repeats is not counted."""
        return sum(len(batch.keys) for batch in self.batches if batch.weight)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Return the same step with all of its tensors on a device (`Batch.to`)."""
        return replace(self, batches=tuple(batch.to(device, non_blocking) for batch in self.batches))

    def pin_memory(self) -> Self:
        """Return the same step with all of its tensors in page-locked memory."""
        return replace(self, batches=tuple(batch.pin_memory() for batch in self.batches))


class UpcomingMicrobatch(NamedTuple):
    """A microbatch or a pack that some rank is about to read, as the plan has it.

    Attributes:
        buckets: the shape of each sample.
        lengths: S of each.
        pixels: whether each comes as pixels; else as latents.
        contexts: whether what the text encoder made of captions is stored.
    """

    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    pixels: tuple[bool, ...]
    contexts: bool
