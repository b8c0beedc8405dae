"""What a microbatch holds of its samples while threads load them: pixels, or the clips as they are encoded."""

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loader.arrays import Places
from loader.buckets import Bucket
from loader.dataset.clip import Clip
from loader.decode import DecoderName, decode


class Contents(Protocol):
    """Of some samples of a microbatch."""

    def fill(self, place: int, clip: Clip, frames_T: Places) -> int:
        """Takes in one sample; from any thread, and again where another has to stand in for it.

        Args:
            place: of the sample, from 0.
            clip: of it.
            frames_T: int64 [T], which frames the bucket takes, in shown order.

        Returns:
            The bytes it takes in `joined`.

        Raises:
            RunError: the clip cannot be decoded.
        """

    def joined(self) -> torch.Tensor:
        """One sample after the other, uint8 [sum of their bytes], once each is taken in."""


class Decoded:
    """Pixels.

    Args:
        buckets: shape of each sample.
        decoder: of upright MP4.
        pin_memory: whether they lie in page-locked memory.
    """

    def __init__(self, buckets: Sequence[Bucket], decoder: DecoderName, pin_memory: bool) -> None:
        shapes = [(3, bucket.frames, bucket.height, bucket.width) for bucket in buckets]
        ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
        self._pixels, self._decoder = _empty(ends[-1], pin_memory), decoder
        values = self._pixels.numpy()
        self._videos = [
            values[begin:end].reshape(shape)
            for shape, (begin, end) in zip(shapes, pairwise(ends), strict=True)
        ]

    def fill(self, place: int, clip: Clip, frames_T: Places) -> int:  # noqa: D102 - see Contents
        decode(clip.media, frames_T, self._videos[place], clip.upright, self._decoder)
        return self._videos[place].size

    def joined(self) -> torch.Tensor:  # noqa: D102
        return self._pixels


class Encoded:
    """Clips as they are encoded.

    Args:
        samples: how many.
        pin_memory: whether they lie in page-locked memory.
    """

    def __init__(self, samples: int, pin_memory: bool) -> None:
        self._clips = [memoryview(b"")] * samples
        self._pin_memory = pin_memory

    def fill(self, place: int, clip: Clip, frames_T: Places) -> int:  # noqa: ARG002, D102 - see Contents
        self._clips[place] = clip.media
        return len(clip.media)

    def joined(self) -> torch.Tensor:  # noqa: D102
        size = sum(map(len, self._clips))
        if _is_sent() and size:
            # Written into the file, not into memory mapped from it, which would cost a page fault every 4 KiB.
            with _shared_file() as file:
                file.writelines(self._clips)
                file.flush()
                return _mapped(file, size)
        joined = _empty(size, self._pin_memory)
        if size:
            np.concatenate([np.frombuffer(clip, np.uint8) for clip in self._clips], out=joined.numpy())
        return joined


def _empty(size: int, pin_memory: bool) -> torch.Tensor:
    """A uint8 tensor of no particular content, where touching it costs least."""
    if _is_sent() and size:
        with _shared_file() as file:
            file.truncate(size)
            return _mapped(file, size)
    if pin_memory:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    # numpy asks for huge pages: a tenth of the page faults of torch.empty.
    return torch.from_numpy(np.empty(size, np.uint8))


def _is_sent() -> bool:
    """Whether tensors go to another process, which would copy them to shared memory: better made there at once."""
    return get_worker_info() is not None and hasattr(os, "memfd_create")


def _shared_file() -> BinaryIO:
    # Unlike what PyTorch makes, it is not bounded by /dev/shm, which is 64 MB in a container by default.
    return os.fdopen(os.memfd_create("reelweave"), "wb")


def _mapped(file: BinaryIO, size: int) -> torch.Tensor:
    storage = torch.UntypedStorage._new_shared_fd_cpu(file.fileno(), size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=torch.uint8).set_(storage)
