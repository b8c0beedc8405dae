"""Published video VAEs of diffusers as frozen tokenizers."""

from pathlib import Path

import torch

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.encoders.decode_tiles import TileLayout
from reelweave.train.models.encoders.tile_grid import TileGrid
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.models.published.families.registry import VAES
from reelweave.train.models.published.folder import description, diffusers, part_folder
from reelweave.train.models.published.vae_base import PublishedVae
from reelweave.train.models.published.weights import empty_model


class DiffusersVAE(Tokenizer):
    """Frozen VAE; latents are the posterior mode, normalized to mean 0 and deviation `scale` as in its pipeline.

    The mode is deterministic: a clip has the same latents in every pass, on every rank, cached or not.

    Args:
        config: name and settings.
        unread: leave the weights on the meta device; config.json is enough then.

    Raises:
        UsageError: the VAE is missing, unsupported, or has another compression than configured.
    """

    def __init__(self, config: DiffusersVAEConfig, unread: bool = False) -> None:
        super().__init__()
        self.config = config
        self._published = load_vae(
            config.name, config.subfolder, getattr(torch, config.dtype), "tokenizer.name", unread
        )
        self.vae = self._published.vae
        self.vae.requires_grad_(False)
        if config.slicing:
            self.vae.enable_slicing()
        if config.tiling:
            self.vae.enable_tiling()
        # The configuration says what the VAE does, since shapes are planned without it.
        self.compression = (config.frames, config.height, config.width)
        compression = self._published.compression
        if compression != self.compression:
            frames, height, width = compression
            raise UsageError(
                f"tokenizer.name={config.name!r} compresses frames, height and width by {compression}: set"
                f" tokenizer.frames={frames}, tokenizer.height={height} and tokenizer.width={width}"
            )
        # Latents are normalized as in its pipeline.
        mean_11CT, deviation_11CT = self._published.statistics()
        self.register_buffer("_mean", mean_11CT, persistent=False)
        self.register_buffer("_deviation", deviation_11CT / config.scale, persistent=False)
        self._mean: torch.Tensor
        self._deviation: torch.Tensor

    @property
    def channels(self) -> int:
        return int(self._mean.shape[1])

    @property
    def tile_grid(self) -> TileGrid | None:
        return self._published.encode_grid() if self.config.tiling else None

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
        """Return the tiles of `decode`, or others with an overlap of `vae_base.OVERLAP_LATENTS`."""
        return self._published.decode_layout(self.config.tiling, step)

    @torch.no_grad()
    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode a tile in the dtype of the VAE.

        Raises:
            UsageError: as in `decode`.
        """
        return self._published.decode_tile(self._restore(latents_BCTHW))

    @torch.no_grad()
    def finish(self, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
        return self._published.finish(decoded_BCTHW).float()

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
        self._published.check_frames(frames)
        mean, deviation = self._of(frames)
        return (latents_BCTHW * deviation + mean).to(self.vae.dtype)

    def _of(self, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._mean[:, :, :frames], self._deviation[:, :, :frames]


def vae_class(folder: Path, name: str, key: str) -> str:
    """Return the class of a VAE in diffusers, without loading it.

    Args:
        folder: folder of the VAE.
        name: as in `load_vae`, for errors.
        key: as in `load_vae`.

    Raises:
        UsageError: it is unsupported.
    """
    class_name = str(description(folder, key).get("_class_name"))
    if class_name not in VAES:
        raise UsageError(f"{key}={name!r} is a {class_name}; supported are {', '.join(VAES)}")
    return class_name


def load_vae(name: str, subfolder: str, dtype: torch.dtype, key: str, unread: bool = False) -> PublishedVae:
    """Load a published VAE with its weights.

    Args:
        name: name of a pipeline or VAE on the hub, or a local folder of either.
        subfolder: subfolder in the pipeline.
        dtype: dtype of the weights.
        key: configuration key, for errors.
        unread: leave the weights on the meta device; they need not be there.

    Raises:
        UsageError: it is missing, unsupported, or damaged.
    """
    folder = part_folder(name, subfolder, key, weights=not unread)
    class_name = vae_class(folder, name, key)
    try:
        if unread:
            return VAES[class_name](empty_model(class_name, folder, dtype).eval())
        vae = getattr(diffusers(), class_name).from_pretrained(
            folder, torch_dtype=dtype, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{key}={name!r} could not be loaded ({first_line(error)}); its folder needs config.json"
            " and weights in safetensors"
        ) from error
    return VAES[class_name](vae)
