"""Peak memory of a decode, predicted without running it, and tiles that keep it within a budget."""

import math
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reelweave.loader.errors import UsageError
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.models.encoders.decode_tiles import TileLayout
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.sampling.decode.assignment import assign, efficiency

SMALLEST_STEP = 8
"""Latents between the starts of the smallest tiles; of smaller ones the overlaps would take more than they save."""
SHARE = 0.7
"""Share of free GPU memory for a decode; the rest is for workspaces of convolutions, which no prediction counts."""


@dataclass(frozen=True)
class DecodePlan:
    """Tiles of a decode with what they cost.

    Attributes:
        layout: tiles.
        tiles: number of tiles of a video.
        peak_bytes: `peak_bytes`.
        efficiency: share of time in which the ranks decode.
    """

    layout: TileLayout
    tiles: int
    peak_bytes: int
    efficiency: float

    def __str__(self) -> str:
        tile = "1 tile" if self.tiles == 1 else f"{self.tiles} tiles"
        peak_gib = self.peak_bytes / 2**30
        return f"{tile} a video, {peak_gib:.2f} GiB at the peak, {self.efficiency:.0%} of the ranks' time"


def plan_decode(
    tokenizer: Tokenizer,
    size: tuple[int, int, int],
    budget_bytes: int | None,
    videos: int = 1,
    ranks: int = 1,
) -> DecodePlan:
    """Return the tokenizer's own tiles if they keep the budget, else the largest ones that do.

    The tiles do not depend on the number of ranks, so that neither does the video.

    Args:
        tokenizer: tokenizer.
        size: latent frames, rows and columns.
        budget_bytes: memory of the first rank for the decode; None: unlimited.
        videos: number of videos in one decode.
        ranks: number of ranks that decode.

    Raises:
        UsageError: the smallest tiles do not keep the budget.
    """
    layout, steps = tokenizer.decode_layout(), (size[1], size[2])
    peak = peak_bytes(tokenizer, layout, size, videos)
    while budget_bytes is not None and peak > budget_bytes:
        if max(steps) <= SMALLEST_STEP:
            raise UsageError(
                f"a decode of {videos} x {size[0]} x {size[1]} x {size[2]} latents takes {peak / 2**30:.3g} GiB even"
                f" in the smallest tiles, and it may take {budget_bytes / 2**30:.3g}: make fewer videos at once, or"
                " shorter or smaller ones"
            )
        steps = _finer(size[1:], steps)
        layout = tokenizer.decode_layout(steps)
        peak = peak_bytes(tokenizer, layout, size, videos)
    costs = [math.prod(tile.size) for tile in layout.tiles(size)] * videos
    return DecodePlan(layout, len(costs) // videos, peak, efficiency(costs, assign(costs, ranks), ranks))


def _finer(sides: tuple[int, int], steps: tuple[int, int]) -> tuple[int, int]:
    """Cut the longer side of tiles into one more part, equal but for rounding."""
    rows, columns = (
        min(step - 1, math.ceil(side / (math.ceil(side / step) + 1)))
        for side, step in zip(sides, steps, strict=True)
    )
    return (rows, steps[1]) if steps[0] >= steps[1] else (steps[0], columns)


def peak_bytes(tokenizer: Tokenizer, layout: TileLayout, size: tuple[int, int, int], videos: int = 1) -> int:
    """Return the peak of one rank that decodes alone, beyond weights and latents; of several the first has no more."""
    tiles = layout.tiles(size)
    device = next(tokenizer.buffers()).device
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), LiveMemory() as memory:
        latents = torch.empty(1, tokenizer.channels, *size, device=device)
        base_bytes = memory.live
        if layout.is_whole(size):
            video = tokenizer.decode(latents)
            return int(memory.peak - base_bytes + 2 * (videos - 1) * video.nbytes)
        largest = max(tiles, key=lambda tile: math.prod(tile.size))
        part = tokenizer.decode_tile(largest.of(latents))
        decode = memory.peak - memory.live
        parts = [part.new_empty((1, part.shape[1], *layout.decoded_size(tile))) for tile in tiles]
        del part
        raw, memory.peak = memory.live - base_bytes, memory.live
        video = tokenizer.finish(layout.assemble(parts, size))
        assembly = memory.peak - base_bytes
    video_bytes = video.nbytes
    return int(
        max(videos * raw + decode, (videos - 1) * (raw + video_bytes) + assembly, 2 * videos * video_bytes)
    )


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that a decode may take; None on a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(SHARE * (free + idle))
