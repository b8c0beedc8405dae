"""What a microbatch holds of its samples while threads load them: pixels or latents, or clips as they are encoded."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loader.base.arrays import Places
from loader.base.shared_memory import has_memfd, map_shared, open_shared
from loader.buckets.assignment import Bucket
from loader.dataset.clip import TrainingSample
from loader.dataset.latents import CONTEXT, LATENT, Latents, array_of, view_of
from loader.errors import RunError
from loader.read.decode import DecoderName, decode


class CollatedSize(NamedTuple):
    """Bytes of one sample.

    Attributes:
        size: in `Collator.joined`.
        text: in `Collator.contexts`.
    """

    size: int
    text: int = 0


class Collator(Protocol):
    """Of some samples of a microbatch."""

    def fill(self, place: int, clip: TrainingSample, frames_T: Places, passed: int) -> CollatedSize:
        """Takes in one sample; from any thread, and again where another has to stand in for it.

        Args:
            place: of the sample, from 0.
            clip: of it.
            frames_T: int64 [T], which frames the bucket takes, in shown order.
            passed: how often the sample was drawn before.

        Raises:
            RunError: the clip cannot be decoded, or its latents are not what the manifest promises.
        """

    def joined(self) -> torch.Tensor:
        """One sample after the other, uint8 [sum of their bytes], once each is taken in."""

    def contexts(self) -> torch.Tensor:
        """What is stored of their captions, likewise; empty where nothing is."""


class DecodedCollator:
    """Pixels, or latents where the bucket has them stored.

    Args:
        buckets: shape of each sample.
        decoder: of upright MP4.
        pin_memory: whether they lie in page-locked memory.
        latents: what is stored; None: nothing that is wanted.
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

    def fill(self, place: int, clip: TrainingSample, frames_T: Places, passed: int) -> CollatedSize:
        video, latents = self._videos[place], self._latents
        if latents is not None and latents.text is not None:
            member = _there(clip.context, CONTEXT)
            width = latents.text.width
            self._contexts[place] = array_of(member, latents.dtype, (None, width), CONTEXT)
            if not len(self._contexts[place]):
                raise RunError(f"its {CONTEXT} holds no token")
        if video.dtype == np.uint8:
            decode(_media(clip), frames_T, video, clip.upright, self._decoder)
        else:
            C, T, H, W = video.shape
            video[:] = view_of(_there(clip.latent, LATENT), str(video.dtype), (C, T, H, W), passed)
        return CollatedSize(video.nbytes, self._contexts[place].nbytes)

    def joined(self) -> torch.Tensor:
        return self._values

    def contexts(self) -> torch.Tensor:
        joined = _empty(sum(context.nbytes for context in self._contexts), self._pin_memory)
        if len(joined):
            parts = [context.reshape(-1).view(np.uint8) for context in self._contexts]
            np.concatenate(parts, out=joined.numpy())
        return joined


class EncodedCollator:
    """Clips as they are encoded.

    Args:
        samples: how many.
        pin_memory: whether they lie in page-locked memory.
    """

    def __init__(self, samples: int, pin_memory: bool) -> None:
        self._clips = [memoryview(b"")] * samples
        self._pin_memory = pin_memory

    def fill(
        self,
        place: int,
        clip: TrainingSample,
        frames_T: Places,  # noqa: ARG002
        passed: int,  # noqa: ARG002
    ) -> CollatedSize:
        self._clips[place] = _media(clip)
        return CollatedSize(len(clip.media))

    def contexts(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def joined(self) -> torch.Tensor:
        size = sum(map(len, self._clips))
        if _is_sent() and size:
            # Written into the file, not into memory mapped from it, which would cost a page fault every 4 KiB.
            with open_shared() as file:
                file.writelines(self._clips)
                file.flush()
                return map_shared(file, size)
        joined = _empty(size, self._pin_memory)
        if size:
            np.concatenate([np.frombuffer(clip, np.uint8) for clip in self._clips], out=joined.numpy())
        return joined


def dtype_and_shape(
    bucket: Bucket, latents: Latents | None
) -> tuple[np.dtype[Any], tuple[int, int, int, int]]:
    """Type and shape of a sample of a bucket: its latents where they are stored, else pixels.

    Args:
        bucket: of the sample.
        latents: what is stored; None: nothing that is wanted.
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
    """A uint8 tensor of no particular content, where touching it costs least."""
    if _is_sent() and size:
        with open_shared() as file:
            file.truncate(size)
            return map_shared(file, size)
    if pin_memory:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    # numpy asks for huge pages: a tenth of the page faults of torch.empty.
    return torch.from_numpy(np.empty(size, np.uint8))


def _is_sent() -> bool:
    """Whether tensors go to another process, which would copy them to shared memory: better made there at once."""
    return get_worker_info() is not None and has_memfd()
