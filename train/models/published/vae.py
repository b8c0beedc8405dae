"""Published video VAEs of diffusers as frozen tokenizers: Wan, CogVideoX, HunyuanVideo, Cosmos."""

from typing import Any

import torch

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.encoders.decode_tiles import TileLayout
from reelweave.train.models.encoders.tile_grid import TileGrid
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.models.published import vae_tiles
from reelweave.train.models.published.folder import description, diffusers, part_folder

SUPPORTED = ("AutoencoderKLWan", "AutoencoderKLCogVideoX", "AutoencoderKLHunyuanVideo", "AutoencoderKLCosmos")


class DiffusersVAE(Tokenizer):
    """Frozen VAE; latents are the posterior mode, normalized to mean 0 and deviation `scale` as in its pipeline.

    The mode is deterministic: a clip has the same latents in every pass, on every rank, cached or not.

    Raises:
        UsageError: the VAE is missing, unsupported, or has another compression than configured.
    """

    def __init__(self, config: DiffusersVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.vae = load_vae(config.name, config.subfolder, getattr(torch, config.dtype), "tokenizer.name")
        self.vae.requires_grad_(False)
        if config.slicing:
            self.vae.enable_slicing()
        if config.tiling:
            self.vae.enable_tiling()
        self.compression = (config.frames, config.height, config.width)
        compression = compression_of(self.vae)
        if compression != self.compression:
            frames, height, width = compression
            raise UsageError(
                f"tokenizer.name={config.name!r} compresses frames, height and width by {compression}: set"
                f" tokenizer.frames={frames}, tokenizer.height={height} and tokenizer.width={width}"
            )
        mean_11CT, deviation_11CT = _statistics(self.vae)
        self.register_buffer("_mean", mean_11CT, persistent=False)
        self.register_buffer("_deviation", deviation_11CT / config.scale, persistent=False)
        self._mean: torch.Tensor
        self._deviation: torch.Tensor

    @property
    def channels(self) -> int:
        return int(self._mean.shape[1])

    @property
    def tile_grid(self) -> TileGrid | None:
        return tile_grid_of(self.vae) if self.config.tiling else None

    @torch.no_grad()
    def encode(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """Encode video to normalized latents, float32."""
        frames, _, _ = self.latent_size(tuple(video_BCTHW.shape[2:]))
        x = video_BCTHW.to(self.vae.dtype)
        if video_BCTHW.dtype == torch.uint8:
            x = x / 127.5 - 1
        latents_BCTHW: torch.Tensor = self.vae.encode(x).latent_dist.mode().float()
        mean, deviation = self._of(frames)
        return (latents_BCTHW - mean) / deviation

    @torch.no_grad()
    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode normalized latents, float32.

        Raises:
            UsageError: CogVideoX's VAE changes the number of frames for an even number of latent frames.
        """
        video_BCTHW: torch.Tensor = self.vae.decode(self._restore(latents_BCTHW)).sample
        return video_BCTHW.float()

    def decode_layout(self, step: tuple[int, int] | None = None) -> TileLayout:
        """Return the tiles of `decode`, or others with an overlap of `vae_tiles.OVERLAP_LATENTS`."""
        if step is not None:
            return vae_tiles.stepped_layout(self.vae, self.compression, *step)
        return vae_tiles.own_layout(self.vae, self.compression, self.config.tiling)

    @torch.no_grad()
    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode a tile in the dtype of the VAE.

        Raises:
            UsageError: as in `decode`.
        """
        return vae_tiles.decode_tile(self.vae, self._restore(latents_BCTHW))

    @torch.no_grad()
    def finish(self, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
        return vae_tiles.finish(self.vae, decoded_BCTHW).float()

    def latent_size(self, size: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the latent size; Cosmos is limited to the latent frames that it has statistics for."""
        latent, max_latents = super().latent_size(size), self._mean.shape[2]
        if 1 < max_latents < latent[0]:
            raise UsageError(
                f"{size[0]} frames are more than the {1 + (max_latents - 1) * self.compression[0]} that"
                f" {self.config.name} has statistics for; take shorter clips"
            )
        return latent

    def _restore(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return the latents that the VAE was trained with."""
        frames = latents_BCTHW.shape[2]
        if type(self.vae).__name__ == "AutoencoderKLCogVideoX" and frames % 2 == 0:
            raise UsageError(
                f"CogVideoX's VAE decodes 1 + a multiple of 8 frames, not {1 + 4 * (frames - 1)}; take another number"
            )
        mean, deviation = self._of(frames)
        return (latents_BCTHW * deviation + mean).to(self.vae.dtype)

    def _of(self, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._mean[:, :, :frames], self._deviation[:, :, :frames]


def load_vae(name: str, subfolder: str, dtype: torch.dtype, key: str) -> Any:
    """Load a published VAE with its weights.

    Args:
        name: name of a pipeline or VAE on the hub, or a local folder of either.
        subfolder: subfolder in the pipeline.
        dtype: dtype of the weights.
        key: configuration key, for errors.

    Raises:
        UsageError: it is missing, unsupported, or damaged.
    """
    folder = part_folder(name, subfolder, key)
    class_name = description(folder, key).get("_class_name")
    if class_name not in SUPPORTED:
        raise UsageError(f"{key}={name!r} is a {class_name}; supported are {', '.join(SUPPORTED)}")
    try:
        return getattr(diffusers(), class_name).from_pretrained(
            folder, torch_dtype=dtype, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{key}={name!r} could not be loaded ({first_line(error)}); its folder needs config.json"
            " and weights in safetensors"
        ) from error


def compression_of(vae: Any) -> tuple[int, int, int]:
    """Return video frames, pixel rows and columns per latent, from the VAE's configuration."""
    theirs = vae.config
    if (halvings := theirs.get("temperal_downsample")) is not None:
        side = 2 ** len(halvings) * (theirs.get("patch_size") or 1)
        return 2 ** sum(halvings), side, side
    side = theirs.get("spatial_compression_ratio") or 2 ** (len(theirs.block_out_channels) - 1)
    return int(theirs.temporal_compression_ratio), side, side


def tile_grid_of(vae: Any) -> TileGrid | None:
    """Return the tiles of a VAE's `tiled_encode`; None if it has none (Cosmos).

    HunyuanVideo's VAE reads one frame more than its tiles have; other VAEs only tile space.
    """
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


def _statistics(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of latents, [1, C, T, 1, 1]; T is 1, or the latent frames with own statistics."""
    theirs = vae.config
    channels = theirs.get("z_dim") or theirs.latent_channels
    shape = (1, channels, -1, 1, 1)
    if theirs.get("latents_mean") is not None and theirs.get("latents_std") is not None:
        mean, deviation = torch.tensor(theirs.latents_mean), torch.tensor(theirs.latents_std)
    else:
        mean, deviation = torch.zeros(channels), torch.full((channels,), 1 / theirs.scaling_factor)
    return mean.view(shape), deviation.view(shape)
