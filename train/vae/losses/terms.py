"""Terms of an autoencoder's loss by sample: pixel errors, and the KL divergence of its posterior."""

from typing import Literal

import torch


def squared_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return each sample's mean squared error over pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).square().flatten(1).mean(dim=1)


def absolute_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return each sample's mean absolute error over pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).abs().flatten(1).mean(dim=1)


def kl_to_standard_normal(
    mean_BCTHW: torch.Tensor, log_variance_BCTHW: torch.Tensor, per: Literal["element", "sample"]
) -> torch.Tensor:
    """Return KL(N(mean, exp(log_variance)) || N(0, 1)) of each sample, in nats [B].

    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014, appendix B, in closed form.

    Args:
        mean_BCTHW: mean of the posterior.
        log_variance_BCTHW: log variance of the diagonal posterior.
        per: element: mean over a latent's C T H W elements, independent of a clip's size; sample: their sum.
    """
    each = (mean_BCTHW.square() + log_variance_BCTHW.exp() - 1 - log_variance_BCTHW).flatten(1) / 2
    return each.mean(dim=1) if per == "element" else each.sum(dim=1)
