"""Tiles of diffusers' video VAEs: the layout of their `tiled_decode`, and one tile decoded as it does."""

from typing import Any

import torch

from reelweave.train.models.encoders.decode_tiles import TileAxis, TileLayout

OVERLAP_LATENTS = 8
"""Overlap of tiles of other sizes than the VAE's own: that of Wan and HunyuanVideo, 64 pixels."""


def own_layout(vae: Any, compression: tuple[int, int, int], spatial: bool) -> TileLayout:
    """Return the tiles of a VAE as it stands.

    Args:
        vae: Wan, CogVideoX, HunyuanVideo, or Cosmos, whose tiles diffusers configures but never cuts.
        compression: video frames, rows and columns per latent.
        spatial: True to cut pictures; HunyuanVideo's VAE always cuts time.
    """
    axes = (_axis(vae, side, compression[dim]) for dim, side in enumerate(("height", "width"), 1))
    return _layout(vae, compression, *(axes if spatial else ()))


def stepped_layout(vae: Any, compression: tuple[int, int, int], rows: int, columns: int) -> TileLayout:
    """Return tiles that start every so many latent rows and columns, and overlap by at most `OVERLAP_LATENTS`."""
    axes = []
    for step, pixels in ((rows, compression[1]), (columns, compression[2])):
        overlap = min(OVERLAP_LATENTS, step)
        axes.append(TileAxis.of(step + overlap, overlap, pixels // _patch(vae)))
    return _layout(vae, compression, *axes)


def decode_tile(vae: Any, latents_BCTHW: torch.Tensor) -> torch.Tensor:
    """Decode one tile as the VAE's `tiled_decode` does; causal in time, from the first frame on."""
    kind = type(vae).__name__
    if kind == "AutoencoderKLWan":
        return _wan(vae, latents_BCTHW)
    if kind == "AutoencoderKLCogVideoX":
        return _cogvideox(vae, latents_BCTHW)
    decoded: torch.Tensor = vae.decoder(vae.post_quant_conv(latents_BCTHW))
    return decoded


def finish(vae: Any, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return the video of blended tiles: Wan's VAE cuts patches and clamps only then."""
    if type(vae).__name__ != "AutoencoderKLWan":
        return decoded_BCTHW
    if vae.config.patch_size is not None:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        decoded_BCTHW = unpatchify(decoded_BCTHW, patch_size=vae.config.patch_size)
    return decoded_BCTHW.clamp(min=-1.0, max=1.0)


def _wan(vae: Any, latents_BCTHW: torch.Tensor) -> torch.Tensor:
    """Decode frame by frame, with what each convolution has seen of the frames before."""
    vae.clear_cache()
    chunks = []
    for frame, latent_BC1HW in enumerate(torch.split(latents_BCTHW, 1, dim=2)):
        vae._conv_idx = [0]
        x = vae.post_quant_conv(latent_BC1HW)
        chunks.append(
            vae.decoder(x, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=frame == 0)
        )
    vae.clear_cache()
    return torch.cat(chunks, dim=2)


def _cogvideox(vae: Any, latents_BCTHW: torch.Tensor) -> torch.Tensor:
    """Decode two frames at a time, one more at first where their number is odd."""
    frames, each = latents_BCTHW.shape[2], vae.num_latent_frames_batch_size
    odd, cache, chunks = frames % each, None, []
    for first in range(0, max(frames - odd, 1), each):
        x = latents_BCTHW[:, :, first + (odd if first else 0) : first + each + odd]
        if vae.post_quant_conv is not None:
            x = vae.post_quant_conv(x)
        x, cache = vae.decoder(x, conv_cache=cache)
        chunks.append(x)
    return torch.cat(chunks, dim=2)


def _layout(vae: Any, compression: tuple[int, int, int], *axes: TileAxis) -> TileLayout:
    frames, *pixels = compression
    height, width = (each // _patch(vae) for each in pixels)
    rows, columns = axes or (None, None)
    return TileLayout((frames, height, width), _times(vae, compression), rows, columns, _patch(vae))


def _patch(vae: Any) -> int:
    """Return the side of the patches that Wan 2.2's decoder leaves to its VAE."""
    return (vae.config.get("patch_size") or 1) if type(vae).__name__ == "AutoencoderKLWan" else 1


def _times(vae: Any, compression: tuple[int, int, int]) -> TileAxis | None:
    if type(vae).__name__ != "AutoencoderKLHunyuanVideo" or not vae.use_framewise_decoding:
        return None
    size, step = vae.tile_sample_min_num_frames, vae.tile_sample_stride_num_frames
    return TileAxis(size // compression[0], step // compression[0], step, size - step)


def _axis(vae: Any, side: str, pixels: int) -> TileAxis:
    """Return the tiles along one side, in the integer arithmetic of diffusers."""
    size = getattr(vae, f"tile_sample_min_{side}")
    if (share := getattr(vae, f"tile_overlap_factor_{side}", None)) is not None:
        latents, blend = getattr(vae, f"tile_latent_min_{side}"), int(size * share)
        return TileAxis(latents, int(latents * (1 - share)), size - blend, blend)
    step = getattr(vae, f"tile_sample_stride_{side}")
    patch = _patch(vae)
    return TileAxis(size // pixels, step // pixels, step // patch, size // patch - step // patch)
