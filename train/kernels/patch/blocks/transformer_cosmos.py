"""Fused blocks for Cosmos of diffusers."""

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers import transformer_cosmos as theirs
from torch import nn

from reelweave.train.kernels.patch import heads
from reelweave.train.kernels.patch.sites import gate_modulate, modulate, over_tokens
from reelweave.train.kernels.patch.swap import Swap, adaptive


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


class Attention(theirs.Attention):  # type: ignore[misc]
    """Attention to video or text, whose queries and keys are normed per head and rotated by one operator."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D]; text [B, M, D] gives keys and values, otherwise the tokens do."""
        x_BLD, from_BMD = hidden_states, encoder_hidden_states
        if not heads.served(self, theirs.CosmosAttnProcessor2_0, kwargs):
            y_BLD: torch.Tensor = super().forward(x_BLD, from_BMD, attention_mask, **kwargs)
            return y_BLD
        rotation = kwargs.get("image_rotary_emb")
        [q] = heads.by_head(self, x_BLD, self.to_q)
        k, v = heads.by_head(self, x_BLD if from_BMD is None else from_BMD, self.to_k, self.to_v)
        angles = None if rotation is None else heads.pairs(rotation, q, interleaved=False)
        q, k = heads.norm_heads(q, k, self.norm_q, self.norm_k, angles, interleaved=False)
        y_BLHd = dispatch_attention_fn(q, k, v, attn_mask=attention_mask, dropout_p=0.0, is_causal=False)
        out_BLD: torch.Tensor = self.to_out[1](self.to_out[0](y_BLHd.flatten(2).type_as(q)))
        return out_BLD


class CosmosAdaLayerNorm(theirs.CosmosAdaLayerNorm):  # type: ignore[misc]
    """Fused norm before the output."""

    def forward(
        self, hidden_states: torch.Tensor, embedded_timestep: torch.Tensor, temb: torch.Tensor | None = None
    ) -> torch.Tensor:
        temb_part = None if temb is None else temb[..., : 2 * self.embedding_dim]
        shift, scale = _vectors(self, embedded_timestep, temb_part)
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
        theirs.Attention,
        Attention,
        {"norm_q": (theirs.RMSNorm,), "norm_k": (theirs.RMSNorm,)},
        "d9a2ed89f4accf90071dd58c9e9360b9a177e29f92dbc0b64caca0634f0d5a33",
        (theirs.CosmosAttnProcessor2_0.__call__, apply_rotary_emb),
        (theirs.CosmosTransformerBlock,),
        (
            "d3edfab19d7274cfd9cef1ed6d44894bf15c7b754f2408c786e672860fec8746",
        ),  # RMSNorm has a line more for NPUs
    ),
    Swap(
        theirs.CosmosAdaLayerNorm,
        CosmosAdaLayerNorm,
        {"norm": (nn.LayerNorm,)},
        "44a661de8745266513c7b33d3faa6390baf08cbe639f9bab7d9e2fe9a0295d4f",
    ),
)
LEFT = {theirs.CosmosAttention: "it attends to pictures, too, with queries and keys of their own"}
