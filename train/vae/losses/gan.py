"""Adversarial losses of both networks, their weight beside a reconstruction, and regularization of the discriminator.

D is the discriminator's logit of a patch, positive for real ones; losses are means over a sample's patches.
"""

from typing import Literal

import torch
from torch.nn import functional as F

DELTA = 1e-6
LARGEST = 1e4

GanLoss = Literal["hinge", "vanilla"]


def to_fool(made_BP: torch.Tensor, loss: GanLoss) -> torch.Tensor:
    """Return the generator's loss for P logits per reconstruction, [B].

    hinge: -D (Lim and Ye, "Geometric GAN", 2017, eq. 16); vanilla: -log sigmoid(D), the non-saturating form
    (Goodfellow et al., 2014, section 3).
    """
    return (-made_BP if loss == "hinge" else F.softplus(-made_BP)).mean(dim=1)


def to_tell_apart(real_BP: torch.Tensor, made_BP: torch.Tensor, loss: GanLoss) -> torch.Tensor:
    """Return the discriminator's loss for P logits per clip and per reconstruction, [B].

    Half the sum of both, as in VQGAN (Esser et al., 2021): 1 for an untrained discriminator with hinge, log 2
    with vanilla.
    """
    price = _hinge if loss == "hinge" else F.softplus
    return (price(-real_BP) + price(made_BP)).mean(dim=1) / 2


def _hinge(wrong_BP: torch.Tensor) -> torch.Tensor:
    return F.relu(1 + wrong_BP)


def r1(real_BP: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return half the squared pixel gradient of the mean logit of each clip, [B].

    Mescheder et al., "Which Training Methods for GANs do actually Converge?", 2018, eq. 9.

    Args:
        real_BP: logits of ``video_BCTHW``.
        video_BCTHW: clips that require a gradient.
    """
    by_pixel: torch.Tensor = torch.autograd.grad(real_BP.mean(dim=1).sum(), video_BCTHW, create_graph=True)[0]
    squared_B: torch.Tensor = by_pixel.square().flatten(1).sum(dim=1)
    return squared_B / 2


def lecam(real_BP: torch.Tensor, made_BP: torch.Tensor, average_2: torch.Tensor) -> torch.Tensor:
    """Return squared distances of logits to the moving average of the other kind, [B].

    Tseng et al., "Regularizing Generative Adversarial Networks under Limited Data", 2021, eq. 3.

    Args:
        real_BP: logits of clips.
        made_BP: logits of their reconstructions.
        average_2: moving averages of the logits of clips and of reconstructions.
    """
    of_real, of_made = average_2.unbind()
    return ((real_BP - of_made).square() + (made_BP - of_real).square()).mean(dim=1)


def gradient_at(scalar: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a scalar with respect to a layer's weights; keeps the graph."""
    gradient: torch.Tensor = torch.autograd.grad(scalar, layer, retain_graph=True)[0]
    return gradient


def adaptive_weight(reconstruction: torch.Tensor, gan: torch.Tensor) -> torch.Tensor:
    """Return the ratio of two gradient norms, a scalar up to `LARGEST`.

    Esser et al., "Taming Transformers for High-Resolution Image Synthesis", 2021, eq. 7.

    Args:
        reconstruction: gradient of the reconstruction terms, without KL, at the decoder's last layer.
        gan: gradient of the unweighted adversarial loss at the same layer.
    """
    pull, push = (torch.linalg.vector_norm(gradient) for gradient in (reconstruction, gan))
    ratio: torch.Tensor = pull / (push + DELTA)
    return ratio.clamp(max=LARGEST)
