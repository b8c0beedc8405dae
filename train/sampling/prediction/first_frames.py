"""Image to video: given first frames as condition channels of every pass of guidance."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from reelweave.loader.base.named_file import read_named
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.read.decode import decode
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.models.denoiser import Denoiser

_MOST_BYTES = 1 << 30


def check_trained(trained: FirstFramesConfig | None, has_given: bool, image_guidance: bool) -> None:
    """Check that a model makes videos with or without given first frames.

    Args:
        trained: configuration that it was trained with; None: without given frames.
        has_given: True if first frames are given.
        image_guidance: True to guide away from the video without them.

    Raises:
        UsageError: it was not trained for this.
    """
    if trained is None:
        if has_given or image_guidance:
            raise UsageError("first frames need a model that was trained with train.first_frames")
    elif image_guidance and not (has_given and trained.dropout):
        raise UsageError(
            "image_guidance needs first frames, and a model that was trained with first_frames.dropout above 0"
        )
    elif not has_given and not trained.dropout:
        raise UsageError(
            "this model was trained with first_frames.dropout=0 and needs first frames: give some"
        )


def check_given(trained: FirstFramesConfig | None, num_given: int, latent_frames: int) -> None:
    """Check that a model continues this many latent frames.

    Args:
        trained: configuration that it was trained with.
        num_given: number of given latent frames.
        latent_frames: number of latent frames of the video.

    Raises:
        UsageError: it was trained with fewer, or nothing is left to make.
    """
    assert trained is not None, "see `check_trained`"
    max_given = min(trained.max_latent_frames, latent_frames - 1)
    if num_given > max_given:
        raise UsageError(
            f"the first frames are {num_given} latent frames, and this model takes {max_given} at most for a video of"
            f" {latent_frames} (train.first_frames.max_latent_frames={trained.max_latent_frames}): give fewer"
        )


def pass_channels(
    trained: FirstFramesConfig | None,
    dit: Denoiser,
    passes: int,
    like_BCTHW: torch.Tensor,
    given_BCTHW: torch.Tensor | None,
    image_guidance: bool,
) -> Sequence[torch.Tensor] | None:
    """Return the condition channels of each pass, [B, K, T, H, W]; None for a model without any.

    Args:
        trained: configuration that the model was trained with.
        dit: the model.
        passes: number of passes; under image guidance the last one has no image.
        like_BCTHW: latents of the videos' size.
        given_BCTHW: latents of the given first frames, or of the whole video that a model with ``reads_picture`` reads;
            None: text to video.
        image_guidance: True to guide away from the video without an image.

    Raises:
        UsageError: the model was not trained for this.
    """
    check_trained(trained, given_BCTHW is not None, image_guidance)
    if trained is None:
        return None
    B, clean_BCTHW = len(like_BCTHW), torch.zeros_like(like_BCTHW)
    if given_BCTHW is None:
        return [dit.condition(clean_BCTHW, [0] * B)] * passes
    frames = given_BCTHW.shape[2]
    num_given = 1 if dit.reads_picture else frames
    clean_BCTHW[:, :, :frames] = given_BCTHW
    channels = [dit.condition(clean_BCTHW, [num_given] * B)] * passes
    return [*channels[1:], dit.condition(clean_BCTHW, [0] * B)] if image_guidance else channels


def read_first_frames(path: Path, count: int, size: tuple[int, int], named: str) -> torch.Tensor:
    """Return the first frames of a file, covering a size and cropped at the centre.

    The result is RGB, uint8 [1, 3, count, height, width].

    Args:
        path: a picture or a video.
        count: number of frames.
        size: height and width.
        named: the file in words, for errors.

    Raises:
        UsageError: the file is no picture or video, or has fewer frames.
    """
    video_CTHW = np.empty((3, count, *size), np.uint8)
    try:
        decode(read_named(path, _MOST_BYTES, named), np.arange(count), video_CTHW, upright=False)
    except RunError as error:
        raise UsageError(f"{named}: {error}") from error
    return torch.from_numpy(video_CTHW)[None]
