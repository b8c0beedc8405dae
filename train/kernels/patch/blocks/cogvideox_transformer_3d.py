"""Fused blocks for CogVideoX of diffusers."""

from typing import Any

import torch
from diffusers.models.normalization import AdaLayerNorm as TheirAdaLayerNorm
from diffusers.models.normalization import CogVideoXLayerNormZero
from diffusers.models.transformers import cogvideox_transformer_3d as theirs
from torch import nn

from reelweave.train.kernels.patch.sites import gate_modulate, modulate, over_tokens
from reelweave.train.kernels.patch.swap import Swap, adaptive


class CogVideoXBlock(theirs.CogVideoXBlock):  # type: ignore[misc]
    """Block with two norms each for video and text, with separate modulations."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_BLD, text_BMD = hidden_states, encoder_hidden_states
        norm = self.norm1.norm
        shift, scale, gate, t_shift, t_scale, t_gate = _vectors(self.norm1, temb)
        y_BLD, text_y_BMD = self.attn1(
            hidden_states=modulate(norm, x_BLD, scale, shift),
            encoder_hidden_states=modulate(norm, text_BMD, t_scale, t_shift),
            image_rotary_emb=image_rotary_emb,
            **(attention_kwargs or {}),
        )
        norm = self.norm2.norm
        shift, scale, last_gate, t_shift, t_scale, last_t_gate = _vectors(self.norm2, temb)
        x_BLD, h_BLD = gate_modulate(norm, x_BLD, y_BLD, gate, scale, shift)
        text_BMD, text_h_BMD = gate_modulate(norm, text_BMD, text_y_BMD, t_gate, t_scale, t_shift)
        text_y_BMD, y_BLD = self.ff(torch.cat([text_h_BMD, h_BLD], dim=1)).split(
            [text_BMD.shape[1], x_BLD.shape[1]], dim=1
        )
        x_BLD = x_BLD + over_tokens(last_gate) * y_BLD
        return x_BLD, text_BMD + over_tokens(last_t_gate) * text_y_BMD


class AdaLayerNorm(TheirAdaLayerNorm):  # type: ignore[misc]
    """Fused norm before the output; CogVideoX passes only ``temb``."""

    def forward(
        self, x: torch.Tensor, timestep: torch.Tensor | None = None, temb: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.emb is not None or self.chunk_dim != 1:
            normed: torch.Tensor = super().forward(x, timestep, temb)
            return normed
        shift, scale = self.linear(self.silu(temb)).chunk(2, dim=1)
        return modulate(self.norm, x, scale, shift)


def _vectors(norm: Any, temb_BE: torch.Tensor) -> tuple[torch.Tensor, ...]:
    vectors: tuple[torch.Tensor, ...] = norm.linear(norm.silu(temb_BE)).chunk(6, dim=1)
    return vectors


SWAPS = (
    Swap(
        theirs.CogVideoXBlock,
        CogVideoXBlock,
        adaptive("norm1", CogVideoXLayerNormZero) | adaptive("norm2", CogVideoXLayerNormZero),
        "f4fcf9ce7a0a96d2a73bfe3f90f04fdf000822e7097b161ee333e85e38823f4e",
    ),
    Swap(
        TheirAdaLayerNorm,
        AdaLayerNorm,
        {"norm": (nn.LayerNorm,)},
        "89c29c0e0e59a0566ed4de89b34675fa12fed5abc595be4439420182dc7dea2f",
    ),
)
LEFT = {theirs.CogVideoXTransformer3DModel: "its norm_final is a norm without modulation"}
