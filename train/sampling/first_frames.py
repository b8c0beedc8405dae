"""Image to video: given first frames as condition channels of every pass of guidance."""

from collections.abc import Sequence

import torch

from loader.errors import UsageError
from train.config.first_frames import FirstFramesConfig
from train.models.denoiser import Denoiser


def check_trained(trained: FirstFramesConfig | None, given: bool, image_guidance: bool) -> None:
    """Check that a model makes videos with or without given first frames.

    Args:
        trained: configuration that it was trained with; None: without given frames.
        given: True if first frames are given.
        image_guidance: True to guide away from the video without them.

    Raises:
        UsageError: it was not trained for this.
    """
    if trained is None:
        if given or image_guidance:
            raise UsageError("first frames need a model that was trained with train.first_frames")
    elif image_guidance and not (given and trained.dropout):
        raise UsageError(
            "image_guidance needs first frames, and a model that was trained with first_frames.dropout above 0"
        )
    elif not given and not trained.dropout:
        raise UsageError(
            "this model was trained with first_frames.dropout=0 and needs first frames: give some"
        )


def check_given(trained: FirstFramesConfig | None, given: int, latent_frames: int) -> None:
    """Check that a model continues this many latent frames.

    Args:
        trained: configuration that it was trained with.
        given: number of given latent frames.
        latent_frames: number of latent frames of the video.

    Raises:
        UsageError: it was trained with fewer, or nothing is left to make.
    """
    assert trained is not None, "see `check_trained`"
    most = min(trained.max_latent_frames, latent_frames - 1)
    if given > most:
        raise UsageError(
            f"the first frames are {given} latent frames, and this model takes {most} at most for a video of"
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
    given = 1 if dit.reads_picture else frames
    clean_BCTHW[:, :, :frames] = given_BCTHW
    own = [dit.condition(clean_BCTHW, [given] * B)] * passes
    return [*own[1:], dit.condition(clean_BCTHW, [0] * B)] if image_guidance else own
