"""The vectors that condition a block, from the timestep: nothing at initialisation (AdaLN-zero)."""

from torch import nn


class ZeroLinear(nn.Linear):
    """A linear layer that starts with all weights zero, so that what it drives starts out switched off."""

    def reset_parameters(self) -> None:
        """Makes them zero, having drawn what an ordinary layer draws: seeds keep their meaning."""
        super().reset_parameters()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def modulation(hidden: int, vectors: int, rank: int | None) -> nn.Module:
    """From the condition [B, hidden] to as many vectors side by side, [B, vectors * hidden].

    Args:
        hidden: width of a token.
        vectors: how many.
        rank: of the matrix (AdaLN-LoRA: Gupta et al., "Photorealistic Video Generation with Diffusion Models", 2023;
            NeMo, Patel et al. 2025, section 4.5.1, takes 256); None: full.
    """
    if rank is None:
        return ZeroLinear(hidden, vectors * hidden)
    return nn.Sequential(nn.Linear(hidden, rank, bias=False), ZeroLinear(rank, vectors * hidden))
