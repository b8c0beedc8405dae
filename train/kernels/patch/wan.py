"""Fused blocks for Wan of diffusers (2.1, 2.2, VACE's main blocks)."""

import torch
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers import transformer_wan as theirs
from torch import nn

from train.kernels.patch.sites import gate_modulate, modulate, over_tokens
from train.kernels.patch.swap import Swap


class WanTransformerBlock(theirs.WanTransformerBlock):  # type: ignore[misc]
    """Block with three norms, two after a gated or plain residual; float32 modulation per sample or token."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Run the block; temb is [B, 6, D], or [B, L, 6, D] for Wan 2.2 with a timestep per token."""
        x_BLD = hidden_states
        vectors = self.scale_shift_table + temb.float()
        shift, scale, gate, last_shift, last_scale, last_gate = vectors.unbind(-2)
        y_BLD = self.attn1(modulate(self.norm1, x_BLD, scale, shift), None, None, rotary_emb)
        if isinstance(self.norm2, FP32LayerNorm):
            # An affine norm without modulation: scale and shift are expanded zeros without memory.
            none = gate.new_zeros(()).expand_as(gate)
            x_BLD, h_BLD = gate_modulate(self.norm2, x_BLD, y_BLD, gate, none, none)
        else:
            x_BLD = h_BLD = _gated(x_BLD, y_BLD, gate)
        x_BLD = x_BLD + self.attn2(h_BLD, encoder_hidden_states, None, None)
        y_BLD = self.ffn(modulate(self.norm3, x_BLD, last_scale, last_shift))
        return _gated(x_BLD, y_BLD, last_gate)


def _gated(x_BLD: torch.Tensor, y_BLD: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    # Unlike the original, y is not cast to float32 first: equal product, and y is saved for backward as it is.
    return (x_BLD.float() + y_BLD * over_tokens(gate)).type_as(x_BLD)


SWAPS = (
    Swap(
        theirs.WanTransformerBlock,
        WanTransformerBlock,
        {"norm1": (FP32LayerNorm,), "norm2": (FP32LayerNorm, nn.Identity), "norm3": (FP32LayerNorm,)},
        "a72b329ae3442367ed1621069a935e2854aaceef1380043b5a0610cf47539221",
    ),
)
LEFT = {
    theirs.WanTransformer3DModel: "its last norm lies in the forward of the whole model, which stays theirs"
}
