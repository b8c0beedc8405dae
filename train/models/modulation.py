"""Modulation vectors of a block from the timestep; zero at initialization (AdaLN-zero)."""

from torch import nn


class ZeroLinear(nn.Linear):
    """Linear layer initialized to zero, which disables its output at first."""

    def reset_parameters(self) -> None:
        """Zero the weights after the usual draws, so that later draws of a seed stay the same."""
        super().reset_parameters()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def modulation(hidden: int, vectors: int, rank: int | None) -> nn.Module:
    """Return a module from the condition [B, hidden] to concatenated vectors, [B, vectors * hidden].

    Args:
        hidden: width of a token.
        vectors: number of vectors.
        rank: rank of the matrix (AdaLN-LoRA: Gupta et al., "Photorealistic Video Generation with Diffusion
            Models", 2023; NeMo, Patel et al. 2025, section 4.5.1, uses 256); None: full.
    """
    if rank is None:
        return ZeroLinear(hidden, vectors * hidden)
    return nn.Sequential(nn.Linear(hidden, rank, bias=False), ZeroLinear(rank, vectors * hidden))
