"""Trainable VAE: clips to posteriors and latents to clips, with gradients."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.vae import VaeModelConfig
from reelweave.train.models.published.folder import read_json
from reelweave.train.models.published.vae import load_vae
from reelweave.train.models.published.vae_base import PublishedVae
from reelweave.train.vae.initialization import Initialization, check_settings, initialise_


@dataclass(frozen=True, eq=False)
class Posterior:
    """Distribution of a clip's latents: normal, or a single point for a deterministic VAE.

    Attributes:
        mean: mean, [B, C, T, H, W].
        log_variance: logarithm of the variance, like the mean; None for a deterministic VAE.
    """

    mean: torch.Tensor
    log_variance: torch.Tensor | None

    def sample(self, noise_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return latents for standard normal noise of the same shape."""
        if self.log_variance is None:
            return self.mean
        return self.mean + (self.log_variance / 2).exp() * noise_BCTHW.to(self.mean)


class VideoVae(nn.Module):
    """Causal 3D VAE of diffusers in torch's default dtype, published or of a changed architecture.

    Args:
        config: configuration of the VAE.
        seed: seed of new weights.

    Attributes:
        vae: the diffusers model.
        initialisation: origins of its weights.
        compression: video frames, pixel rows and columns per latent.

    Raises:
        UsageError: the VAE is missing, the architecture is incompatible, or its compression differs from
            the configured one.
    """

    def __init__(self, config: VaeModelConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        published = load_vae(config.name, config.subfolder, torch.get_default_dtype(), "model.name")
        if config.architecture is None:
            self.initialisation = Initialization(tuple(published.vae.state_dict()), (), ())
        else:
            published, self.initialisation = _build_changed(published, config, seed)
        self._published, self.vae = published, published.vae
        self.compression = published.compression
        self._check_compression()
        if config.activation_checkpointing:
            self._checkpoint_activations()
        self.vae.requires_grad_(True)
        if config.frozen_encoder:
            for part in (self.vae.encoder, self.vae.quant_conv):
                if part is not None:
                    part.requires_grad_(False)

    @property
    def family(self) -> str:
        """Class name of the diffusers model."""
        return type(self.vae).__name__

    @property
    def channels(self) -> int:
        """Number of channels of a latent."""
        return self._published.channels

    @property
    def frames_step(self) -> int:
        """Step of valid clip lengths 1 + k * step: Wan encodes 4 frames, CogVideoX decodes 2 latent frames at once."""
        return self._published.frames_step

    @property
    def variational(self) -> bool:
        """True if latents are a distribution; False for Cosmos."""
        return self._published.variational

    @cached_property
    def last_layer(self) -> nn.Parameter:
        """Weights of the layer that outputs pixels."""
        matrices = [weight for weight in self.vae.decoder.conv_out.parameters() if weight.ndim > 1]
        last: nn.Parameter = matrices[-1]
        return last

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """Return the trained weights, by diffusers' names."""
        return {name: weight for name, weight in self.vae.named_parameters() if weight.requires_grad}

    def encode(self, video_BCTHW: torch.Tensor) -> Posterior:
        """Return the posterior of clips with pixels in [-1, 1]."""
        distribution = self.vae.encode(video_BCTHW).latent_dist
        if not self.variational:
            return Posterior(distribution.mode(), None)
        return Posterior(distribution.mean, distribution.logvar)

    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return clips, [B, 3, frames, height, width], not clipped, so that pixels beyond [-1, 1] get gradients."""
        return self._published.decode_unclipped(latents_BCTHW)

    def _check_compression(self) -> None:
        config, compression = self.config, self.compression
        if compression != (config.frames, config.height, config.width):
            raise UsageError(
                f"the VAE compresses frames, height and width by {compression}: set model.frames={compression[0]},"
                f" model.height={compression[1]} and model.width={compression[2]}"
            )

    def _checkpoint_activations(self) -> None:
        if not self.vae._supports_gradient_checkpointing:
            raise UsageError(
                f"diffusers cannot compute the activations of a {self.family} again: leave"
                " model.activation_checkpointing at false, and train on smaller or shorter clips"
            )
        self.vae.enable_gradient_checkpointing()


def _build_changed(
    published: PublishedVae, config: VaeModelConfig, seed: int
) -> tuple[PublishedVae, Initialization]:
    """Build a VAE of the configured architecture with the published weights that fit."""
    assert config.architecture is not None
    kind = type(published.vae)
    settings = check_settings(published, read_json(config.architecture, "model.architecture"))
    published_name = published.published_name(settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            vae = kind(**settings).eval()
        except (ValueError, TypeError, IndexError, AssertionError) as error:
            raise UsageError(
                f"model.architecture={str(config.architecture)!r} is none that diffusers can build: {first_line(error)}"
            ) from error
    initialisation = initialise_(vae, published.vae.state_dict(), published_name)
    changed = type(published)(vae)
    _check_sizes(changed)
    return changed, initialisation


@torch.no_grad()
def _check_sizes(changed: PublishedVae) -> None:
    """Run a small clip, since a configuration may claim factors that its blocks do not have."""
    vae, (frames, height, width) = changed.vae, changed.compression
    claimed = vae.config.get("scale_factor_spatial")
    if claimed is not None and claimed != height:
        raise UsageError(
            f"model.architecture: scale_factor_spatial is {claimed}, but its levels make it {height}"
        )
    clip_1CTHW = torch.zeros(1, 3, 1 + 2 * frames, 2 * height, 2 * width)
    latents = vae.encode(clip_1CTHW).latent_dist.mode()
    back = vae.decode(latents).sample
    if latents.shape[2:] != (3, 2, 2) or back.shape != clip_1CTHW.shape:
        raise UsageError(
            f"model.architecture claims to compress by {(frames, height, width)}, but its blocks make of a clip of"
            f" {tuple(clip_1CTHW.shape[2:])} latents of {tuple(latents.shape[2:])} and a clip of"
            f" {tuple(back.shape[2:])}; give it as many blocks that halve as the factors say"
        )
