"""Image-to-video condition: first latent frames that the model is given, as channels beside the noisy latents.

A mask and the clean latents under it, as in Stable Video Diffusion (Blattmann et al. 2023, section 4.2) and Wan (Wan
Team 2025, section 5.1). The noisy latents and the target are those of text to video.
"""

from collections.abc import Sequence

import torch


def first_frame_channels(channels: int) -> int:
    """Return the number of condition channels of latents with ``channels`` channels: a mask and the latents."""
    return 1 + channels


def first_frame_condition(clean_BCTHW: torch.Tensor, given: Sequence[int]) -> torch.Tensor:
    """Return the condition, [B, 1 + C, T, H, W]: ones and latents in given frames, zeros behind them.

    Args:
        clean_BCTHW: clean latents; only their given frames are read.
        given: number of given latent frames of each sample, 0 to T.
    """
    frames_T = torch.arange(clean_BCTHW.shape[2], device=clean_BCTHW.device)
    given_B = torch.tensor(list(given), device=clean_BCTHW.device)
    mask_B1T11 = (frames_T < given_B[:, None])[:, None, :, None, None]
    mask_B1THW = mask_B1T11.to(clean_BCTHW.dtype).expand(-1, -1, -1, *clean_BCTHW.shape[3:])
    return torch.cat([mask_B1THW, clean_BCTHW.where(mask_B1T11, 0)], dim=1)
