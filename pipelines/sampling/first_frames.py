"""Picture or frames that a video begins with."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from loader.base.named_file import read_named
from loader.errors import RunError, UsageError
from loader.read.decode import decode

_MOST_BYTES = 1 << 30


def image_digest(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        UsageError: it cannot be read.
    """
    return hashlib.sha256(read_named(path, _MOST_BYTES, f"--image {path}")).hexdigest()


def read_first_frames(path: Path, count: int, size: tuple[int, int]) -> torch.Tensor:
    """Return the first frames of a file, covering a size and cropped at the centre.

    The result is RGB, uint8 [1, 3, count, height, width].

    Args:
        path: a picture or a video.
        count: number of frames.
        size: height and width.

    Raises:
        UsageError: the file is no picture or video, or has fewer frames.
    """
    video_CTHW = np.empty((3, count, *size), np.uint8)
    try:
        decode(read_named(path, _MOST_BYTES, f"--image {path}"), np.arange(count), video_CTHW, upright=False)
    except RunError as error:
        raise UsageError(f"--image {path}: {error}") from error
    return torch.from_numpy(video_CTHW)[None]
