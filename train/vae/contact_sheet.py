"""Contact sheet of clips and their reconstructions."""

from collections.abc import Sequence

import torch

from reelweave.train.loop.logs.pictures import filmstrip, png, sheet

FRAMES = 6
"""Maximum number of evenly chosen frames per clip."""


def side_by_side(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """Return a PNG with a row of frames per clip, and a row of reconstructed frames below it.

    Args:
        pairs: clips and their reconstructions, [3, T, H, W] each, pixels in [-1, 1]; of any shapes.
    """
    videos = [
        ((x_CTHW.clamp(-1, 1) + 1) * 127.5).round().byte().cpu().numpy() for pair in pairs for x_CTHW in pair
    ]
    return png(sheet([[filmstrip(video, FRAMES)] for video in videos]))
