"""What a microbatch holds of its samples while threads load them: pixels, or the clips as they are encoded."""

import math
import os
from collections.abc import Sequence
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loader.arrays import Places
from loader.batch import Media
from loader.buckets import Bucket
from loader.dataset.clip import Clip
from loader.decode import DecoderName, decode


class Contents(Protocol):
    """Of one microbatch."""

    def fill(self, number: int, clip: Clip, frames_T: Places) -> None:
        """Takes in one sample; from any thread, and again where another has to stand in for it.

        Args:
            number: its place in the microbatch.
            clip: of it.
            frames_T: int64 [T], which frames the bucket takes, in shown order.

        Raises:
            RunError: the clip cannot be decoded.
        """

    def done(self) -> tuple[torch.Tensor, Media | None]:
        """``Microbatch.video_BCTHW`` and ``Microbatch.media``, once every sample is taken in."""


class Decoded:
    """Pixels.

    Args:
        samples: B.
        bucket: their shape.
        decoder: of upright MP4.
        pin_memory: whether they lie in page-locked memory.
    """

    def __init__(self, samples: int, bucket: Bucket, decoder: DecoderName, pin_memory: bool) -> None:
        shape = (samples, 3, bucket.frames, bucket.height, bucket.width)
        self._video_BCTHW = _empty(shape, pin_memory)
        self._pixels_BCTHW, self._decoder = self._video_BCTHW.numpy(), decoder

    def fill(self, number: int, clip: Clip, frames_T: Places) -> None:  # noqa: D102 - see Contents
        decode(clip.media, frames_T, self._pixels_BCTHW[number], clip.upright, self._decoder)

    def done(self) -> tuple[torch.Tensor, None]:  # noqa: D102
        return self._video_BCTHW, None


class Encoded:
    """Clips as they are encoded.

    Args:
        samples: B.
        bucket: whose frames are chosen.
        pin_memory: whether they lie in page-locked memory.
    """

    def __init__(self, samples: int, bucket: Bucket, pin_memory: bool) -> None:
        self._clips = [memoryview(b"")] * samples
        self._frames_BT = np.empty((samples, bucket.frames), np.int64)
        self._pin_memory = pin_memory

    def fill(self, number: int, clip: Clip, frames_T: Places) -> None:  # noqa: D102 - see Contents
        self._clips[number], self._frames_BT[number] = clip.media, frames_T

    def done(self) -> tuple[torch.Tensor, Media]:  # noqa: D102
        offsets = np.cumsum([0, *(len(clip) for clip in self._clips)])
        bytes_N = _joined(self._clips, int(offsets[-1]), self._pin_memory)
        none_BCTHW = torch.empty((len(self._clips), 3, 0, 0, 0), dtype=torch.uint8)
        return none_BCTHW, Media(bytes_N, offsets, self._frames_BT)


def _empty(shape: tuple[int, ...], pin_memory: bool) -> torch.Tensor:
    """A uint8 tensor of no particular content, where touching it costs least."""
    if _is_sent():
        with _shared_file() as file:
            file.truncate(math.prod(shape))
            return _mapped(file, math.prod(shape)).view(shape)
    if pin_memory:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    # numpy asks for huge pages: a tenth of the page faults of torch.empty.
    return torch.from_numpy(np.empty(shape, np.uint8))


def _joined(clips: Sequence[memoryview], size: int, pin_memory: bool) -> torch.Tensor:
    """One clip after the other, uint8 [size]."""
    if _is_sent() and size:
        # Written into the file, not into memory mapped from it, which would cost a page fault every 4 KiB.
        with _shared_file() as file:
            file.writelines(clips)
            file.flush()
            return _mapped(file, size)
    joined_N = _empty((size,), pin_memory) if size else torch.empty(0, dtype=torch.uint8)
    np.concatenate([np.frombuffer(clip, np.uint8) for clip in clips], out=joined_N.numpy())
    return joined_N


def _is_sent() -> bool:
    """Whether tensors go to another process, which would copy them to shared memory: better made there at once."""
    return get_worker_info() is not None and hasattr(os, "memfd_create")


def _shared_file() -> BinaryIO:
    # Unlike what PyTorch makes, it is not bounded by /dev/shm, which is 64 MB in a container by default.
    return os.fdopen(os.memfd_create("reelweave"), "wb")


def _mapped(file: BinaryIO, size: int) -> torch.Tensor:
    storage = torch.UntypedStorage._new_shared_fd_cpu(file.fileno(), size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=torch.uint8).set_(storage)
