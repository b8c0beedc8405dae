"""Fused blocks for Cosmos of diffusers."""

from typing import Any

import torch
from diffusers.models.transformers import transformer_cosmos as theirs
from torch import nn

from train.kernels.patch.sites import gate_modulate, modulate, over_tokens
from train.kernels.patch.swap import Swap, adaptive


class CosmosTransformerBlock(theirs.CosmosTransformerBlock):  # type: ignore[misc]
    """Block with three norms, two after a gated residual; low-rank modulation per sample or per token."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | tuple[torch.Tensor | None, torch.Tensor | None] | None,
        embedded_timestep: torch.Tensor,
        temb: torch.Tensor | None = None,
        image_rotary_emb: torch.Tensor | None = None,
        extra_pos_emb: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        controlnet_residual: torch.Tensor | None = None,
        latents: torch.Tensor | None = None,
        block_idx: int | None = None,  # noqa: ARG002 - theirs has it and does not use it either
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x_BLD = hidden_states
        if self.before_proj is not None:
            x_BLD = self.before_proj(x_BLD) + latents
        if extra_pos_emb is not None:
            x_BLD = x_BLD + extra_pos_emb
        shift, scale, gate = _vectors(self.norm1, embedded_timestep, temb)
        y_BLD = self.attn1(modulate(self.norm1.norm, x_BLD, scale, shift), image_rotary_emb=image_rotary_emb)
        shift, scale, next_gate = _vectors(self.norm2, embedded_timestep, temb)
        x_BLD, h_BLD = gate_modulate(self.norm2.norm, x_BLD, y_BLD, gate, scale, shift)
        y_BLD = self.attn2(h_BLD, encoder_hidden_states=encoder_hidden_states, attention_mask=attention_mask)
        shift, scale, last_gate = _vectors(self.norm3, embedded_timestep, temb)
        x_BLD, h_BLD = gate_modulate(self.norm3.norm, x_BLD, y_BLD, next_gate, scale, shift)
        x_BLD = x_BLD + over_tokens(last_gate) * self.ff(h_BLD)
        if controlnet_residual is not None:
            x_BLD = x_BLD + controlnet_residual
        return x_BLD if self.after_proj is None else (x_BLD, self.after_proj(x_BLD))


class CosmosAdaLayerNorm(theirs.CosmosAdaLayerNorm):  # type: ignore[misc]
    """Fused norm before the output."""

    def forward(
        self, hidden_states: torch.Tensor, embedded_timestep: torch.Tensor, temb: torch.Tensor | None = None
    ) -> torch.Tensor:
        own = None if temb is None else temb[..., : 2 * self.embedding_dim]
        shift, scale = _vectors(self, embedded_timestep, own)
        return modulate(self.norm, hidden_states, scale, shift)


def _vectors(
    norm: Any, embedded_timestep: torch.Tensor, temb: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Return shift, scale and, for a block, gate: [B, D] each, or [B, L, D]."""
    low_rank = norm.linear_2(norm.linear_1(norm.activation(embedded_timestep)))
    vectors = low_rank if temb is None else low_rank + temb
    return tuple(vectors.split(norm.norm.normalized_shape[0], dim=-1))


_ZERO = theirs.CosmosAdaLayerNormZero
SWAPS = (
    Swap(
        theirs.CosmosTransformerBlock,
        CosmosTransformerBlock,
        adaptive("norm1", _ZERO) | adaptive("norm2", _ZERO) | adaptive("norm3", _ZERO),
        "79823648cad9bf88b017ba8fa592bf7661f629365eec85119860bd9d2d1d771d",
    ),
    Swap(
        theirs.CosmosAdaLayerNorm,
        CosmosAdaLayerNorm,
        {"norm": (nn.LayerNorm,)},
        "44a661de8745266513c7b33d3faa6390baf08cbe639f9bab7d9e2fe9a0295d4f",
    ),
)
LEFT: dict[type[nn.Module], str] = {}
