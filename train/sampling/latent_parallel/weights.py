"""Position-aware weights of overlapping parts (arXiv 2512.07350v1, section 3.4)."""

import math

import torch

from reelweave.train.sampling.latent_parallel.parts import LatentDivision
from reelweave.train.sampling.latent_parallel.rules import Ramp


def ramp(length: int, kind: Ramp) -> torch.Tensor:
    """Return rising weights over an overlap, float64 [length].

    Args:
        length: latent rows of the overlap.
        kind: shape. linear (Eq. 12) and cosine: at (j + 1/2) / length, so that no row has weight 0. closed_cosine:
            from 0 to 1 with both ends, as in the artifact. There an overlap of one row has weight 0.
    """
    j = torch.arange(length, dtype=torch.float64)
    if kind == "closed_cosine":
        return (1 - torch.cos(math.pi * j / max(1, length - 1))) / 2
    middle = (j + 0.5) / length
    return middle if kind == "linear" else (1 - torch.cos(math.pi * middle)) / 2


def blend_weights(division: LatentDivision, kind: Ramp) -> torch.Tensor:
    """Return each part's share of every latent row along the axis, float64 [K, rows]; each row's shares sum to 1.

    Weights are 1 in a part's core, fall to its borders over overlaps, and are divided by their sum (Eqs. 12 to 17).
    """
    patch = division.patch
    weights_KN = torch.zeros(len(division.parts), division.parts[-1].core[1] * patch, dtype=torch.float64)
    for weights_N, part in zip(weights_KN, division.parts, strict=True):
        (start, end), (first, last) = part.core, part.reach
        weights_N[start * patch : end * patch] = 1
        weights_N[first * patch : start * patch] = ramp((start - first) * patch, kind)
        weights_N[end * patch : last * patch] = ramp((last - end) * patch, kind).flip(0)
    return weights_KN / weights_KN.sum(dim=0)
