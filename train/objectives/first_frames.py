"""Image-to-video condition: first latent frames that the model is given, as channels beside the noisy latents.

A mask and the clean latents under it, as in Stable Video Diffusion (Blattmann et al. 2023, section 4.2) and Wan (Wan
Team 2025, section 5.1). The noisy latents and the target are those of text to video.
"""

from collections.abc import Sequence

import torch


def first_frame_channels(channels: int) -> int:
    """Return the number of condition channels of latents with ``channels`` channels: a mask and the latents."""
    return 1 + channels


def first_frame_condition(clean_BCTHW: torch.Tensor, num_given: Sequence[int]) -> torch.Tensor:
    """Return the condition, [B, 1 + C, T, H, W]: ones and latents in given frames, zeros behind them.

    Args:
        clean_BCTHW: clean latents; only their given frames are read.
        num_given: number of given latent frames of each sample, 0 to T.
    """
    B, T = len(clean_BCTHW), clean_BCTHW.shape[2]
    mask_B1T11 = torch.zeros(B, 1, T, 1, 1, dtype=torch.bool, device=clean_BCTHW.device)
    for index, count in enumerate(num_given):
        mask_B1T11[index, :, :count] = True
    mask_B1THW = mask_B1T11.to(clean_BCTHW.dtype).expand(-1, -1, -1, *clean_BCTHW.shape[3:])
    return torch.cat([mask_B1THW, clean_BCTHW.where(mask_B1T11, 0)], dim=1)


def picture_video(video_BCTHW: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the first frame of a video with grey frames behind it, floating point in [-1, 1], [B, 3, frames, H, W].

    Wan's image-to-video models read the latents of this video (Wan Team 2025, section 5.1).

    Args:
        video_BCTHW: uint8 RGB, or floating point in [-1, 1]; one frame or more.
        frames: number of frames of the result.
    """
    first_BC1HW = video_BCTHW[:, :, :1]
    if first_BC1HW.dtype == torch.uint8:
        first_BC1HW = first_BC1HW.float() / 127.5 - 1
    grey = first_BC1HW.new_zeros(()).expand(*first_BC1HW.shape[:2], frames - 1, *first_BC1HW.shape[3:])
    return torch.cat([first_BC1HW, grey], dim=2)


def picture_condition(latents_BCTHW: torch.Tensor, masks: int) -> torch.Tensor:
    """Return Wan's condition, [B, masks + C, T, H, W]: masks that are one in the first frame, and the latents.

    Args:
        latents_BCTHW: latents of `picture_video`.
        masks: number of mask channels, one for each video frame of a latent frame.
    """
    B, _, T, H, W = latents_BCTHW.shape
    mask_BMTHW = latents_BCTHW.new_zeros(B, masks, T, H, W)
    mask_BMTHW[:, :, 0] = 1
    return torch.cat([mask_BMTHW, latents_BCTHW], dim=1)
