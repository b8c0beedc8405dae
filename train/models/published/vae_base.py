"""Base of diffusers' video VAEs: statistics and tiles of their latents, and their decoders.

Defaults hold for most. A family whose VAE does something in its own way derives from it in its own module.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from reelweave.train.models.encoders.decode_tiles import TileAxis, TileLayout
from reelweave.train.models.encoders.tile_grid import TileGrid

OVERLAP_LATENTS = 8
"""Overlap of tiles of other sizes than the VAE's own: that of Wan and HunyuanVideo, 64 pixels."""

VaeSettings = Mapping[str, Any]
PublishedName = Callable[[str], str | None]
"""Mapping from the name of a weight to its published name; None without one."""


class PublishedVae:
    """Video VAE of diffusers, causal in time.

    Args:
        vae: the diffusers model.

    Attributes:
        source: class in diffusers.
        variational: True if latents are a distribution; False for a single point.
        fixed: settings that a changed architecture keeps, so that blocks of equal names have equal functions.
    """

    source: ClassVar[str]
    variational: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, vae: Any) -> None:
        self.vae = vae

    @property
    def compression(self) -> tuple[int, int, int]:
        """Video frames, pixel rows and columns per latent, from the VAE's configuration."""
        theirs = self.vae.config
        if (halvings := theirs.get("temperal_downsample")) is not None:
            side = 2 ** len(halvings) * (theirs.get("patch_size") or 1)
            return 2 ** sum(halvings), side, side
        side = theirs.get("spatial_compression_ratio") or 2 ** (len(theirs.block_out_channels) - 1)
        return int(theirs.temporal_compression_ratio), side, side

    @property
    def channels(self) -> int:
        """Number of channels of a latent."""
        return int(self.vae.config.get("z_dim") or self.vae.config.latent_channels)

    @property
    def frames_step(self) -> int:
        """Step of valid clip lengths 1 + k * step."""
        return self.compression[0]

    @property
    def patch(self) -> int:
        """Rows and columns of pixels that `finish` makes of a decoded value."""
        return 1

    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation of latents, [1, C, T, 1, 1].

        T is 1, or the number of latent frames with statistics of their own.
        """
        theirs, shape = self.vae.config, (1, self.channels, -1, 1, 1)
        if theirs.get("latents_mean") is not None and theirs.get("latents_std") is not None:
            mean, deviation = torch.tensor(theirs.latents_mean), torch.tensor(theirs.latents_std)
        else:
            mean = torch.zeros(self.channels)
            deviation = torch.full((self.channels,), 1 / theirs.scaling_factor)
        return mean.view(shape), deviation.view(shape)

    def check_frames(self, latent_frames: int) -> None:
        """Refuse a number of latent frames that the VAE does not decode to the clip they are of.

        Raises:
            UsageError: it decodes another number of frames.
        """

    def decode_unclipped(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode latents to pixels that may lie beyond [-1, 1], so that these get gradients."""
        video_BCTHW: torch.Tensor = self.vae.decode(latents_BCTHW).sample
        return video_BCTHW

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode one tile as the VAE's `tiled_decode` does; causal in time, from the first frame on."""
        decoded: torch.Tensor = self.vae.decoder(self.vae.post_quant_conv(latents_BCTHW))
        return decoded

    def finish(self, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return the video of blended tiles."""
        return decoded_BCTHW

    def time_tiles(self) -> TileAxis | None:
        """Return the tiles in time of a decode; None: the VAE cuts pictures alone."""
        return None

    def published_name(self, changed: VaeSettings) -> PublishedName:  # noqa: ARG002
        """Return the published name of each weight of a changed architecture of this VAE.

        Args:
            changed: settings of the architecture.

        Raises:
            UsageError: blocks were added elsewhere than at the deep end, or removed.
        """
        return lambda name: name

    def decode_layout(self, spatial: bool, step: tuple[int, int] | None = None) -> TileLayout:
        """Return the tiles of a decode.

        Args:
            spatial: True to cut pictures into the VAE's own tiles.
            step: latent rows and columns between the starts of tiles that overlap by at most `OVERLAP_LATENTS`,
                instead of the VAE's own.
        """
        pairs = zip(self.compression[1:], ("height", "width"), step or (None, None), strict=True)
        axes = [
            self._axis(side, pixels)
            if latents is None
            else TileAxis.of(
                latents + min(OVERLAP_LATENTS, latents), min(OVERLAP_LATENTS, latents), pixels // self.patch
            )
            for pixels, side, latents in pairs
        ]
        rows, columns = axes if spatial or step else (None, None)
        frames, height, width = self.compression
        scale = frames, height // self.patch, width // self.patch
        return TileLayout(scale, self.time_tiles(), rows, columns, self.patch)

    def encode_grid(self) -> TileGrid | None:
        """Return the tiles of an encode; None if the VAE has none (Cosmos).

        HunyuanVideo's VAE reads one frame more than its tiles have; other VAEs only tile space.
        """
        vae = self.vae
        if not hasattr(vae, "tiled_encode"):
            return None
        pixels = vae.config.get("patch_size") or 1  # Wan 2.2's unit is a patch
        height, width = vae.tile_sample_min_height, vae.tile_sample_min_width
        if hasattr(vae, "tile_overlap_factor_height"):
            height_step = int(height * (1 - vae.tile_overlap_factor_height))
            width_step = int(width * (1 - vae.tile_overlap_factor_width))
        else:
            height_step, width_step = vae.tile_sample_stride_height, vae.tile_sample_stride_width
        in_time = {}
        if getattr(vae, "use_framewise_encoding", False):
            in_time = {
                "frames": vae.tile_sample_min_num_frames + 1,
                "frames_step": vae.tile_sample_stride_num_frames,
            }
        sizes = {"height": height, "width": width, "height_step": height_step, "width_step": width_step}
        return TileGrid(**{name: pixels * size for name, size in sizes.items()}, **in_time)

    def _axis(self, side: str, pixels: int) -> TileAxis:
        """Return the tiles along one side, in the integer arithmetic of diffusers."""
        vae, patch = self.vae, self.patch
        size = getattr(vae, f"tile_sample_min_{side}")
        if (share := getattr(vae, f"tile_overlap_factor_{side}", None)) is not None:
            latents, blend = getattr(vae, f"tile_latent_min_{side}"), int(size * share)
            return TileAxis(latents, int(latents * (1 - share)), size - blend, blend)
        step = getattr(vae, f"tile_sample_stride_{side}")
        return TileAxis(size // pixels, step // pixels, step // patch, size // patch - step // patch)
