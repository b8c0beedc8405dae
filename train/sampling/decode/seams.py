"""Seam score: how much more a video changes across the borders of tiles than inside them."""

import torch

from reelweave.train.models.encoders.decode_tiles import COLUMNS, ROWS, TileAxis, TileLayout


def seam_score(video_BCTHW: torch.Tensor, layout: TileLayout) -> float:
    """Return the mean absolute gradient across tile borders over that inside, 1 without seams.

    A border lies where the next tile begins to fade in, and where it has faded in.

    Args:
        video_BCTHW: decoded video.
        layout: tiles that it was decoded in; it must cut the video.
    """
    across, inside = [], []
    for dim, axis in ((ROWS, layout.rows), (COLUMNS, layout.columns)):
        if axis is None:
            continue
        gradient = video_BCTHW.float().diff(dim=dim).abs().movedim(dim, 0).flatten(1).mean(1)
        border = torch.zeros(len(gradient), dtype=torch.bool)
        border[_borders(axis, layout.patch, len(gradient) + 1)] = True
        across.append(gradient[border])
        inside.append(gradient[~border])
    return float(torch.cat(across).mean() / torch.cat(inside).mean())


def _borders(axis: TileAxis, patch: int, pixels: int) -> list[int]:
    """Return the gradients across borders: between pixels ``at`` and ``at + 1``."""
    starts = range(axis.keep * patch, pixels, axis.keep * patch)
    return [at - 1 for start in starts for at in (start, start + axis.blend * patch) if at < pixels]
