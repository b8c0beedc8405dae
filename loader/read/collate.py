"""Collation: the tensors of a microbatch, filled by concurrent threads with pixels, latents or encoded clips."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.shared.memory import has_memfd, map_shared, open_shared
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.dataset.latents import CONTEXT, LATENT, Latents, array_of, view_of
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.errors import RunError
from reelweave.loader.read.decode import DecoderName, decode
from reelweave.loader.read.filler import black_clip


class CollatedSize(NamedTuple):
    """Sizes of one collated sample in bytes.

    Attributes:
        size: bytes in `Collator.join`.
        text: bytes in `Collator.contexts`.
    """

    size: int
    text: int = 0


class Collator(Protocol):
    """Collation of one rank's samples of a microbatch."""

    def fill(self, index: int, clip: TrainingSample, frames_T: IndexArray, passed: int) -> CollatedSize:
        """Add one sample; thread-safe, and repeatable if a replacement is needed.

        Args:
            index: number of the sample, from 0.
            clip: content of the sample.
            frames_T: int64 [T], numbers of the bucket's frames in display order.
            passed: number of earlier draws of the sample.

        Raises:
            RunError: the clip is undecodable, or its latents contradict the manifest.
        """

    def blank(self, index: int, bucket: Bucket) -> CollatedSize:
        """Add black pixels, zero latents or a black clip where no sample can be used.

        Args:
            index: number of the sample, from 0.
            bucket: planned shape of the sample.
        """

    def join(self) -> torch.Tensor:
        """Return the concatenated samples, uint8 [sum of their bytes], once all are added."""

    def contexts(self) -> torch.Tensor:
        """Return the concatenated stored contexts of their captions, uint8; empty if none are stored."""


class DecodedCollator:
    """Collation of pixels, or of latents for buckets with stored ones.

    Args:
        buckets: shape of each sample.
        decoder: decoder of upright MP4.
        pin_memory: True for page-locked memory.
        latents: description of the stored latents to use; None to decode pixels.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        decoder: DecoderName,
        pin_memory: bool,
        latents: Latents | None = None,
    ) -> None:
        kinds = [dtype_and_shape(bucket, latents) for bucket in buckets]
        ends = np.cumsum([0, *(math.prod(shape) * dtype.itemsize for dtype, shape in kinds)]).tolist()
        self._values, self._decoder, self._latents = _empty(ends[-1], pin_memory), decoder, latents
        values, self._pin_memory = self._values.numpy(), pin_memory
        self._videos = [
            values[begin:end].view(dtype).reshape(shape)
            for (dtype, shape), (begin, end) in zip(kinds, pairwise(ends), strict=True)
        ]
        self._contexts = [np.empty((0, 0), np.uint8)] * len(buckets)

    def fill(self, index: int, clip: TrainingSample, frames_T: IndexArray, passed: int) -> CollatedSize:
        video, latents = self._videos[index], self._latents
        if latents is not None and latents.text is not None:
            member = _there(clip.context, CONTEXT)
            width = latents.text.width
            self._contexts[index] = array_of(member, latents.dtype, (None, width), CONTEXT)
            if not len(self._contexts[index]):
                raise RunError(f"its {CONTEXT} holds no token")
        if video.dtype == np.uint8:
            decode(_media(clip), frames_T, video, clip.upright, self._decoder)
        else:
            C, T, H, W = video.shape
            video[:] = view_of(_there(clip.latent, LATENT), str(video.dtype), (C, T, H, W), passed)
        return CollatedSize(video.nbytes, self._contexts[index].nbytes)

    def blank(self, index: int, bucket: Bucket) -> CollatedSize:  # noqa: ARG002 - known since the beginning
        video, latents = self._videos[index], self._latents
        video[:] = 0
        if latents is not None and latents.text is not None:
            rows = 1 + bool(latents.text.pooled_width)  # the pooled embedding, and one token
            self._contexts[index] = np.zeros((rows, latents.text.width), latents.dtype)
        return CollatedSize(video.nbytes, self._contexts[index].nbytes)

    def join(self) -> torch.Tensor:
        return self._values

    def contexts(self) -> torch.Tensor:
        joint = _empty(sum(context.nbytes for context in self._contexts), self._pin_memory)
        if len(joint):
            parts = [context.reshape(-1).view(np.uint8) for context in self._contexts]
            np.concatenate(parts, out=joint.numpy())
        return joint


class EncodedCollator:
    """Collation of encoded clips.

    Args:
        samples: number of samples.
        pin_memory: True for page-locked memory.
    """

    def __init__(self, samples: int, pin_memory: bool) -> None:
        self._clips = [memoryview(b"")] * samples
        self._pin_memory = pin_memory

    def fill(
        self,
        index: int,
        clip: TrainingSample,
        frames_T: IndexArray,  # noqa: ARG002
        passed: int,  # noqa: ARG002
    ) -> CollatedSize:
        self._clips[index] = _media(clip)
        return CollatedSize(len(clip.media))

    def blank(self, index: int, bucket: Bucket) -> CollatedSize:
        self._clips[index] = memoryview(black_clip(bucket))
        return CollatedSize(len(self._clips[index]))

    def contexts(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def join(self) -> torch.Tensor:
        size = sum(map(len, self._clips))
        if _is_sent() and size:
            # Writing to the file avoids a page fault every 4 KiB, unlike writing to memory mapped from it.
            with open_shared() as file:
                file.writelines(self._clips)
                file.flush()
                return map_shared(file, size)
        joint = _empty(size, self._pin_memory)
        if size:
            np.concatenate([np.frombuffer(clip, np.uint8) for clip in self._clips], out=joint.numpy())
        return joint


def dtype_and_shape(
    bucket: Bucket, latents: Latents | None
) -> tuple[np.dtype[Any], tuple[int, int, int, int]]:
    """Return dtype and shape of a sample of a bucket: those of its stored latents, else of pixels.

    Args:
        bucket: bucket of the sample.
        latents: description of the stored latents to use; None for pixels.
    """
    shape = None if latents is None else latents.shape(bucket.frames, bucket.height, bucket.width)
    if latents is None or shape is None:
        return np.dtype(np.uint8), (3, bucket.frames, bucket.height, bucket.width)
    return np.dtype(latents.dtype), shape


def _media(clip: TrainingSample) -> memoryview:
    if not len(clip.media):
        raise RunError("its latents were stored without its clip")
    return clip.media


def _there(member: memoryview | None, name: str) -> memoryview:
    if member is None:
        raise RunError(f"it has no member {name}")
    return member


def _empty(size: int, pin_memory: bool) -> torch.Tensor:
    """Return an uninitialized uint8 tensor in the cheapest suitable memory."""
    if _is_sent() and size:
        with open_shared() as file:
            file.truncate(size)
            return map_shared(file, size)
    if pin_memory:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    # numpy requests huge pages: a tenth of the page faults of torch.empty.
    return torch.from_numpy(np.empty(size, np.uint8))


def _is_sent() -> bool:
    """Return whether tensors go to another process, so that shared memory saves a copy."""
    return get_worker_info() is not None and has_memfd()
