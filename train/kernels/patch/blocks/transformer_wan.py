"""Fused blocks for Wan of diffusers (2.1, 2.2, VACE's main blocks)."""

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers import transformer_wan as theirs
from torch import nn

from reelweave.train.kernels.dense_attention import dense_attention
from reelweave.train.kernels.patch.sites import gate_modulate, modulate, over_tokens
from reelweave.train.kernels.patch.swap import Swap
from reelweave.train.kernels.qk_norm.operator import qk_norm


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
            x_BLD = h_BLD = _add_gated(x_BLD, y_BLD, gate)
        x_BLD = x_BLD + self.attn2(h_BLD, encoder_hidden_states, None, None)
        y_BLD = self.ffn(modulate(self.norm3, x_BLD, last_scale, last_shift))
        return _add_gated(x_BLD, y_BLD, last_gate)


class WanAttention(theirs.WanAttention):  # type: ignore[misc]
    """Attention whose queries and keys are normed across heads and rotated by one operator.

    With another processor, tokens of a picture (Wan 2.1's image to video) or positions in another form, it stays
    diffusers' own.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D]; the positions are cosines and sines, [1, L, 1, d] or [B, L, 1, d]."""
        # A processor of ours for parts of a sequence keeps diffusers' for whole ones.
        processor: Any = getattr(self.processor, "theirs", self.processor)
        supported = type(processor) is theirs.WanAttnProcessor and self.add_k_proj is None and not kwargs
        if not supported or not (rotary_emb is None or _of_all_heads(rotary_emb)):
            y_BLD: torch.Tensor = super().forward(
                hidden_states, encoder_hidden_states, attention_mask, rotary_emb, **kwargs
            )
            return y_BLD
        projected = theirs._get_qkv_projections(self, hidden_states, encoder_hidden_states)
        q_BLHd, k_BMHd, v_BMHd = (x.unflatten(2, (self.heads, -1)) for x in projected)
        q_BLHd, k_BMHd = qk_norm(
            q_BLHd,
            k_BMHd,
            self.norm_q.weight,
            self.norm_k.weight,
            self.norm_q.eps,
            None if rotary_emb is None else _angles(*rotary_emb),
            across_heads=True,
            interleaved=True,
        )
        # Cross-attention without a mask takes our choice of kernel; the rest goes where diffusers was set to send it.
        if (
            encoder_hidden_states is not None
            and attention_mask is None
            and processor._attention_backend is None
        ):
            y_BHLd = dense_attention(*(x.transpose(1, 2) for x in (q_BLHd, k_BMHd, v_BMHd)))
            y_BLHd = y_BHLd.transpose(1, 2)
        else:
            y_BLHd = dispatch_attention_fn(
                q_BLHd,
                k_BMHd,
                v_BMHd,
                attn_mask=attention_mask,
                dropout_p=0.0,
                is_causal=False,
                backend=processor._attention_backend,
                parallel_config=processor._parallel_config if encoder_hidden_states is None else None,
            )
        out_BLD: torch.Tensor = self.to_out[1](self.to_out[0](y_BLHd.flatten(2).type_as(q_BLHd)))
        return out_BLD


def _angles(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cosine and a sine for each pair of channels, float32 [L, d / 2] or [B, L, d / 2].

    They are views, which all blocks share.
    """
    cos, sin = cos[:, :, 0, 0::2].float(), sin[:, :, 0, 1::2].float()
    return (cos[0], sin[0]) if len(cos) == 1 else (cos, sin)


def _of_all_heads(rotary: Any) -> bool:
    """Return True for cosines and sines in diffusers' form, the same for all heads of a sample."""
    return type(rotary) is tuple and all(x.ndim == 4 and x.shape[2] == 1 for x in rotary)


def _add_gated(x_BLD: torch.Tensor, y_BLD: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    # Unlike the original, y is not cast to float32 first: equal product, and y is saved for backward as it is.
    return (x_BLD.float() + y_BLD * over_tokens(gate)).type_as(x_BLD)


SWAPS = (
    Swap(
        theirs.WanTransformerBlock,
        WanTransformerBlock,
        {"norm1": (FP32LayerNorm,), "norm2": (FP32LayerNorm, nn.Identity), "norm3": (FP32LayerNorm,)},
        "a72b329ae3442367ed1621069a935e2854aaceef1380043b5a0610cf47539221",
    ),
    Swap(
        theirs.WanAttention,
        WanAttention,
        {"norm_q": (nn.RMSNorm,), "norm_k": (nn.RMSNorm,)},
        "d13f374b1424a4242b4ad598e2efd68e67268d3183fb3c6fa9d96fb1bc0c8203",
        (theirs.WanAttnProcessor.__call__, theirs._get_qkv_projections),
    ),
)
LEFT = {
    theirs.WanTransformer3DModel: "its last norm lies in the forward of the whole model, which stays theirs"
}
