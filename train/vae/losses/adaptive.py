"""Adaptive GAN weight, which balances the gradients of adversarial and reconstruction loss at the decoder."""

import torch

DELTA = 1e-6
LARGEST = 1e4


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
