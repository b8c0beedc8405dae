"""The weight that keeps a discriminator's pull on the decoder as strong as that of the reconstruction."""

import torch

DELTA = 1e-6
LARGEST = 1e4


def gradient_at(scalar: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    """The gradient of a scalar by a layer's weights, like them; the graph stays."""
    found: torch.Tensor = torch.autograd.grad(scalar, layer, retain_graph=True)[0]
    return found


def adaptive_weight(reconstruction: torch.Tensor, gan: torch.Tensor) -> torch.Tensor:
    """The norm of one gradient over that of another, a scalar up to `LARGEST`.

    Esser et al., "Taming Transformers for High-Resolution Image Synthesis", 2021, eq. 7.

    Args:
        reconstruction: gradient of the reconstruction's terms, without KL, by the decoder's last layer.
        gan: gradient of the term that fools the discriminator, unweighted, by the same.
    """
    pull, push = (torch.linalg.vector_norm(gradient) for gradient in (reconstruction, gan))
    ratio: torch.Tensor = pull / (push + DELTA)
    return ratio.clamp(max=LARGEST)
