"""Contact sheet of clips and their reconstructions."""

import io
from collections.abc import Sequence

import torch
from PIL import Image

FRAMES = 6
"""Maximum number of evenly chosen frames per clip."""
_GAP_PX = 4


def side_by_side(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """Return a PNG with a row of frames per clip, and a row of reconstructed frames below it.

    Args:
        pairs: clips and their reconstructions, [3, T, H, W] each, pixels in [-1, 1]; of any shapes.
    """
    rows = [_row(x_CTHW) for pair in pairs for x_CTHW in pair]
    width = max(row.width for row in rows)
    sheet = Image.new("RGB", (width, sum(row.height + _GAP_PX for row in rows) - _GAP_PX), "white")
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height + _GAP_PX
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _row(video_CTHW: torch.Tensor) -> Image.Image:
    frames, height, width = video_CTHW.shape[1:]
    chosen = torch.linspace(0, frames - 1, min(frames, FRAMES)).round().long()
    bytes_THWC = ((video_CTHW[:, chosen].clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 3, 0).cpu()
    row = Image.new("RGB", (len(chosen) * (width + _GAP_PX) - _GAP_PX, height), "white")
    for number, picture_HWC in enumerate(bytes_THWC.numpy()):
        row.paste(Image.fromarray(picture_HWC), (number * (width + _GAP_PX), 0))
    return row
