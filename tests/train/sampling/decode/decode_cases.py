"""Latents that tiny published VAEs decode in small tiles."""

import torch

CASES = {
    "wan": [(3, 1, 7), (2, 2, 4), (2, 5, 7)],
    "wan 2.2": [(2, 5, 7)],
    "cogvideox": [(3, 1, 9), (5, 5, 7)],
    "hunyuan": [(6, 5, 3)],
    "cosmos": [(2, 5, 7)],
}
"""Frames, rows and columns of latents, among them few rows, of which some ranks get none."""


def cut_small(vae) -> None:
    """Tiles of 4 latents that start every 3."""
    pixels = 16 if vae.config.get("patch_size") == 2 and hasattr(vae, "clear_cache") else 8
    sizes = {f"tile_sample_min_{side}": 4 * pixels for side in ("height", "width")}
    if hasattr(vae, "tile_overlap_factor_height"):
        vae.enable_tiling(**sizes, tile_overlap_factor_height=0.25, tile_overlap_factor_width=0.25)
    else:
        vae.enable_tiling(
            **sizes, **{f"tile_sample_stride_{side}": 3 * pixels for side in ("height", "width")}
        )


def latents_of(tokenizer, size, videos=2):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(videos, tokenizer.channels, *size, generator=draw)
