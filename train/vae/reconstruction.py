"""Reconstruction of clips, and the loss terms that need no discriminator."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from reelweave.loader.batch import Microbatch
from reelweave.loader.errors import UsageError
from reelweave.train.config.vae import LossesConfig, TermConfig
from reelweave.train.models.precision.float32 import at_least_float32
from reelweave.train.step.noise import draw_noise
from reelweave.train.vae.losses.perceptual import Perceptual
from reelweave.train.vae.losses.terms import absolute_error, kl_to_standard_normal, squared_error
from reelweave.train.vae.network import Posterior, VideoVae


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Clips, reconstructions and the latents between, all at least float32.

    Attributes:
        video: pixels in [-1, 1], [B, 3, T, H, W].
        reconstructed: reconstruction of the same shape, not clipped.
        posterior: distribution of the latents.
    """

    video: torch.Tensor
    reconstructed: torch.Tensor
    posterior: Posterior

    @property
    def latents(self) -> int:
        """Number of latent positions in time and space, over all samples."""
        mean_BCTHW = self.posterior.mean
        return mean_BCTHW.shape[0] * mean_BCTHW[0, 0].numel()


def reconstruct(vae: VideoVae, batch: Microbatch, device: torch.device, seed: int | None) -> Reconstruction:
    """Encode and decode the clips of a microbatch.

    Args:
        vae: the tokenizer.
        batch: microbatch of any valid shape.
        device: compute device.
        seed: seed of posterior samples, drawn per sample: equal in any microbatch, on any rank. None: use the mean.

    Raises:
        UsageError: reconstructions have another size than the clips.
    """
    video_BCTHW = pixels(batch.video_BCTHW.to(device))
    encoded = vae.encode(video_BCTHW)
    scale = encoded.log_variance
    posterior = Posterior(at_least_float32(encoded.mean), None if scale is None else at_least_float32(scale))
    latents_BCTHW = posterior.mean
    if seed is not None:
        shape = latents_BCTHW.shape[1:]
        latents_BCTHW = posterior.sample(draw_noise(seed, batch.draw_keys, batch.passes, shape, device))
    made_BCTHW = at_least_float32(vae.decode(latents_BCTHW))
    if made_BCTHW.shape != video_BCTHW.shape:
        raise UsageError(
            f"{vae.family} makes clips of {_size(made_BCTHW)} of clips of {_size(video_BCTHW)}: set"
            f" stream.buckets.frames to 1 + multiples of {vae.frames_step}, and sizes to multiples of"
            f" {vae.compression[1]} and {vae.compression[2]}"
        )
    return Reconstruction(video_BCTHW, made_BCTHW, posterior)


def pixels(video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return pixels in [-1, 1], in torch's default dtype, from bytes or pixels."""
    x = video_BCTHW.to(torch.get_default_dtype())
    return x / 127.5 - 1 if video_BCTHW.dtype == torch.uint8 else x


class ReconstructionLoss(nn.Module):
    """Reconstruction terms and KL.

    Args:
        config: configuration of the terms.
        vae: tokenizer to train.

    Attributes:
        perceptual: LPIPS, if configured.

    Raises:
        UsageError: a term is unavailable.
    """

    def __init__(self, config: LossesConfig, vae: VideoVae) -> None:
        super().__init__()
        if config.kl and not vae.variational:
            raise UsageError(f"{vae.family} has no posterior, so there is no KL: set losses.kl to null")
        self._config = config
        self.perceptual = Perceptual(config.lpips) if config.lpips else None

    def terms(self, reconstruction: Reconstruction, step: int) -> dict[str, torch.Tensor]:
        """Return the active terms of a step, unweighted, [B] each."""
        config, terms = self._config, {}
        if _counts(config.mse, step):
            terms["mse"] = squared_error(reconstruction.reconstructed, reconstruction.video)
        if _counts(config.l1, step):
            terms["l1"] = absolute_error(reconstruction.reconstructed, reconstruction.video)
        if config.kl and _counts(config.kl, step):
            log_variance = reconstruction.posterior.log_variance
            assert log_variance is not None
            terms["kl"] = kl_to_standard_normal(reconstruction.posterior.mean, log_variance, config.kl.per)
        if self.perceptual and _counts(config.lpips, step):
            terms["lpips"] = at_least_float32(
                self.perceptual(reconstruction.reconstructed, reconstruction.video)
            ).mean(dim=1)
        return terms

    def compare(self, terms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted sum of reconstruction terms, [B], the reference of the adaptive GAN weight."""
        return self._sum({name: term for name, term in terms.items() if name != "kl"})

    def whole(self, terms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted sum of all terms, [B]."""
        return self._sum(terms)

    def _sum(self, terms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        weighed = [getattr(self._config, name).weight * term_B for name, term_B in terms.items()]
        return torch.stack(weighed).sum(dim=0)


def _counts(term: TermConfig | None, step: int) -> bool:
    return term is not None and step >= term.start_step


def _size(video_BCTHW: torch.Tensor) -> str:
    frames, height, width = video_BCTHW.shape[2:]
    return f"{frames} frames of {height}x{width}"
