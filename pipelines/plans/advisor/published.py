"""Published models as the advisor takes them, without their files."""

from functools import partial

from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans.advisor.shapes import VideoModel
from reelweave.train.models.published.families.registry import FAMILIES
from reelweave.train.models.published.size import PublishedSize


def _describe_model(
    name: str, sizes: PublishedSize, joint_text: bool, frames: int, height: int, width: int, steps: int
) -> VideoModel:
    """Return a family's model for a video.

    Raises:
        UsageError: the video does not fit it, as `reelweave sample` would refuse it.
    """
    t, h, w = sizes.compression
    if remainder := (frames - 1) % t:
        fits = frames - remainder
        raise UsageError(
            f"--frames {frames} do not fit the model: use {fits} or {fits + t}, 1 + a multiple of {t}"
        )
    T = 1 + (frames - 1) // t
    grid = T, *_places(height, width, 2 * h, 2 * w)
    return VideoModel(
        name,
        sizes.layers,
        sizes.hidden,
        sizes.heads,
        sizes.inner,
        sizes.parameters,
        grid,
        sizes.text_tokens,
        sizes.passes,
        steps,
        4 * sizes.channels * T * (height // h) * (width // w),
        own_text=joint_text,
    )


def _open_sora(frames: int, height: int, width: int, steps: int) -> VideoModel:
    """Return Open-Sora 1.2, an ST-DiT of 28 pairs of layers, as ScaleFusion's paper runs it."""
    T = max(1, -(-frames * 5 // 17))
    grid, latents = (T, *_places(height, width, 16, 16)), 4 * 4 * T * (height // 8) * (width // 8)
    return VideoModel(
        "open-sora-1.2", 56, 1152, 16, 4608, 1.1e9, grid, 300, 2, steps, latents, spatial_temporal=True
    )


def _places(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the number of tokens along rows and columns."""
    if height % rows or width % columns:
        side = f"{rows}" if rows == columns else f"{rows} and {columns}"
        raise UsageError(f"--size {height}x{width} does not fit the model: use multiples of {side}")
    return height // rows, width // columns


MODELS = {
    name: partial(_describe_model, name, sizes, family.joint_text)
    for family in FAMILIES
    for name, sizes in family.sizes.items()
} | {"open-sora-1.2": _open_sora}
"""Functions from frames, height, width and steps of a video to the model, by name."""
