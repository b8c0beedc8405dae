"""What a discriminator's verdicts cost both sides, and what keeps it from winning too early.

A verdict is what it says of a patch, positive for real ones; of each sample there are as many as it has patches, and
their mean counts.
"""

from typing import Literal

import torch
from torch.nn import functional as F

GanLoss = Literal["hinge", "vanilla"]


def to_fool(made_BP: torch.Tensor, loss: GanLoss) -> torch.Tensor:
    """What P verdicts on each reconstruction cost the one who made it, [B].

    hinge: -D (Lim and Ye, "Geometric GAN", 2017, eq. 16); vanilla: -log sigmoid(D), the form that does not saturate
    (Goodfellow et al., 2014, section 3).
    """
    return (-made_BP if loss == "hinge" else F.softplus(-made_BP)).mean(dim=1)


def to_tell_apart(real_BP: torch.Tensor, made_BP: torch.Tensor, loss: GanLoss) -> torch.Tensor:
    """What verdicts on P patches of clips and their reconstructions cost the discriminator, [B].

    Half the sum of both kinds, as in VQGAN (Esser et al., 2021): 1 where hinge knows nothing, log 2 where vanilla does.
    """
    price = _hinge if loss == "hinge" else F.softplus
    return (price(-real_BP) + price(made_BP)).mean(dim=1) / 2


def _hinge(wrong_BP: torch.Tensor) -> torch.Tensor:
    return F.relu(1 + wrong_BP)


def r1(real_BP: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Half the squared gradient, by its pixels, of the mean verdict on each clip, [B].

    Mescheder et al., "Which Training Methods for GANs do actually Converge?", 2018, eq. 9.

    Args:
        real_BP: verdicts on ``video_BCTHW``.
        video_BCTHW: clips, which require a gradient.
    """
    by_pixel: torch.Tensor = torch.autograd.grad(real_BP.mean(dim=1).sum(), video_BCTHW, create_graph=True)[0]
    squared_B: torch.Tensor = by_pixel.square().flatten(1).sum(dim=1)
    return squared_B / 2


def lecam(real_BP: torch.Tensor, made_BP: torch.Tensor, usual_2: torch.Tensor) -> torch.Tensor:
    """Squared distances of verdicts to the usual one on the other kind, [B].

    Tseng et al., "Regularizing Generative Adversarial Networks under Limited Data", 2021, eq. 3.

    Args:
        real_BP: verdicts on clips.
        made_BP: verdicts on their reconstructions.
        usual_2: averages over the steps before of the verdicts on clips and on reconstructions.
    """
    of_real, of_made = usual_2.unbind()
    return ((real_BP - of_made).square() + (made_BP - of_real).square()).mean(dim=1)
