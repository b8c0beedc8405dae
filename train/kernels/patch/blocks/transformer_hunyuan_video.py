"""Fused blocks for HunyuanVideo of diffusers, and FramePack, which consists of its blocks."""

from typing import Any, NamedTuple

import torch
from diffusers.models import normalization as norms
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers import transformer_hunyuan_video as theirs
from torch import nn

from reelweave.train.kernels.patch import heads, sites
from reelweave.train.kernels.patch.heads import Rotation
from reelweave.train.kernels.patch.swap import Swap, adaptive

Streams = tuple[torch.Tensor, torch.Tensor]


class StreamConditions(NamedTuple):
    """Conditions of a stream's tokens: per sample, with separate ones for a given first frame.

    Both kinds of tokens are groups of one pack, two for each of B samples.

    Attributes:
        per_sample: condition of each sample, [B, D].
        per_first: condition of each first frame, [B, D]; None: there is no such frame.
        tokens: number of tokens of the first frame.
    """

    per_sample: torch.Tensor
    per_first: torch.Tensor | None = None
    tokens: int = 0

    def vectors(self, norm: Any, x_BLD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return modulation rows [B, D], or [2 B, D] with the first frame's before its sample's."""
        modulation = norm.linear(norm.silu(self.per_sample))
        if self.per_first is not None:
            pairs = torch.stack([norm.linear(norm.silu(self.per_first)), modulation], dim=1)
            modulation = pairs.expand(x_BLD.shape[0], -1, -1).flatten(0, 1)
        return tuple(modulation.split(norm.norm.normalized_shape[0], dim=1))

    def modulate(
        self, norm: nn.LayerNorm, x_BLD: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
    ) -> torch.Tensor:
        """Modulate as in `sites`, with rows of `vectors`."""
        return sites.modulate(norm, self._join_streams(x_BLD), scale, shift, self._ends(x_BLD)).view(
            x_BLD.shape
        )

    def gate_modulate(
        self,
        norm: nn.LayerNorm,
        residual_BLD: torch.Tensor,
        y_BLD: torch.Tensor,
        gate: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate and modulate as in `sites`, with rows of `vectors`."""
        residual, y, ends = self._join_streams(residual_BLD), self._join_streams(y_BLD), self._ends(y_BLD)
        h, out = sites.gate_modulate(norm, residual, y, gate, scale, shift, ends)
        return h.view(y_BLD.shape), out.view(y_BLD.shape)

    def add_gated(self, residual_BLD: torch.Tensor, y_BLD: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return ``residual + gate * y``, with rows of `vectors`."""
        if self.per_first is None:
            return residual_BLD + sites.over_tokens(gate) * y_BLD
        n, (first, rest) = self.tokens, gate.view(-1, 2, 1, gate.shape[-1]).unbind(1)
        return residual_BLD + torch.cat([first * y_BLD[:, :n], rest * y_BLD[:, n:]], dim=1)

    def _join_streams(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return x_BLD if self.per_first is None else x_BLD.reshape(1, -1, x_BLD.shape[-1])

    def _ends(self, x_BLD: torch.Tensor) -> torch.Tensor | None:
        if self.per_first is None:
            return None
        B, L, _ = x_BLD.shape
        # Computed on the device, since copying a list would synchronize.
        ends = torch.arange(2 * B + 1, device=x_BLD.device, dtype=torch.int32)
        return ends // 2 * L + ends % 2 * self.tokens


def _dual(
    block: Any,
    streams: Streams,
    video: StreamConditions,
    text: StreamConditions,
    mask: torch.Tensor | None,
    rotation: Rotation | None,
) -> Streams:
    """Run a block with separate weights for video and text."""
    x_BLD, text_BMD = streams
    shift, scale, gate, next_shift, next_scale, last_gate = video.vectors(block.norm1, x_BLD)
    h_BLD = video.modulate(block.norm1.norm, x_BLD, scale, shift)
    shift, scale, t_gate, t_shift, t_scale, last_t_gate = text.vectors(block.norm1_context, text_BMD)
    text_h_BMD = text.modulate(block.norm1_context.norm, text_BMD, scale, shift)
    y_BLD, text_y_BMD = block.attn(
        hidden_states=h_BLD,
        encoder_hidden_states=text_h_BMD,
        attention_mask=mask,
        image_rotary_emb=rotation,
    )
    x_BLD, h_BLD = video.gate_modulate(block.norm2, x_BLD, y_BLD, gate, next_scale, next_shift)
    text_BMD, text_h_BMD = text.gate_modulate(
        block.norm2_context, text_BMD, text_y_BMD, t_gate, t_scale, t_shift
    )
    x_BLD = video.add_gated(x_BLD, block.ff(h_BLD), last_gate)
    return x_BLD, text.add_gated(text_BMD, block.ff_context(text_h_BMD), last_t_gate)


def _single(
    block: Any, streams: Streams, both: StreamConditions, mask: torch.Tensor | None, rotation: Rotation | None
) -> Streams:
    """Run a block with shared weights for video and text, attention and MLP in parallel."""
    lengths = [stream.shape[1] for stream in streams]
    x_BND = torch.cat(streams, dim=1)
    shift, scale, gate = both.vectors(block.norm, x_BND)
    h_BND = both.modulate(block.norm.norm, x_BND, scale, shift)
    mlp = block.act_mlp(block.proj_mlp(h_BND))
    h_BLD, text_h_BMD = torch.split(h_BND, lengths, dim=1)
    attended = block.attn(
        hidden_states=h_BLD,
        encoder_hidden_states=text_h_BMD,
        attention_mask=mask,
        image_rotary_emb=rotation,
    )
    y_BND = block.proj_out(torch.cat([torch.cat(attended, dim=1), mlp], dim=2))
    x_BLD, text_BMD = torch.split(both.add_gated(x_BND, y_BND, gate), lengths, dim=1)
    return x_BLD, text_BMD


class HunyuanVideoTransformerBlock(theirs.HunyuanVideoTransformerBlock):  # type: ignore[misc]
    """Block with two norms for video and two for text."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: Rotation | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> Streams:
        conditions = StreamConditions(temb)
        return _dual(
            self, (hidden_states, encoder_hidden_states), conditions, conditions, attention_mask, freqs_cis
        )


class HunyuanVideoTokenReplaceTransformerBlock(
    theirs.HunyuanVideoTokenReplaceTransformerBlock  # type: ignore[misc]
):
    """Two-stream block with a given first frame."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: Rotation | None = None,
        token_replace_emb: torch.Tensor | None = None,
        num_tokens: int = 0,
    ) -> Streams:
        video = StreamConditions(temb, token_replace_emb, num_tokens)
        streams = hidden_states, encoder_hidden_states
        return _dual(self, streams, video, StreamConditions(temb), attention_mask, freqs_cis)


class HunyuanVideoSingleTransformerBlock(theirs.HunyuanVideoSingleTransformerBlock):  # type: ignore[misc]
    """Block with one norm for video and text in one sequence."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Rotation | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> Streams:
        streams = hidden_states, encoder_hidden_states
        return _single(self, streams, StreamConditions(temb), attention_mask, image_rotary_emb)


class HunyuanVideoTokenReplaceSingleTransformerBlock(
    theirs.HunyuanVideoTokenReplaceSingleTransformerBlock  # type: ignore[misc]
):
    """Single-stream block with a given first frame."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Rotation | None = None,
        token_replace_emb: torch.Tensor | None = None,
        num_tokens: int = 0,
    ) -> Streams:
        both = StreamConditions(temb, token_replace_emb, num_tokens)
        return _single(self, (hidden_states, encoder_hidden_states), both, attention_mask, image_rotary_emb)


class Attention(theirs.Attention):  # type: ignore[misc]
    """Attention over video and text, whose queries and keys are normed per head and rotated by one operator.

    Text with weights of its own is normed by another one, and has no positions.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Map tokens [B, L, D] and those of text [B, M, D]; the positions are of the former alone."""
        x_BLD, text_BMD = hidden_states, encoder_hidden_states
        if not heads.served(self, theirs.HunyuanVideoAttnProcessor2_0, kwargs):
            y: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
                x_BLD, text_BMD, attention_mask, **kwargs
            )
            return y
        # Text has projections of its own, or joins the tokens before the common ones.
        rotation, added = kwargs.get("image_rotary_emb"), self.add_q_proj is not None
        M = 0 if text_BMD is None else text_BMD.shape[1]
        if text_BMD is not None and not added:
            x_BLD = torch.cat([x_BLD, text_BMD], dim=1)
        # Norm and rotation in one kernel; text has no positions.
        q, k, v = heads.by_head(self, x_BLD, self.to_q, self.to_k, self.to_v)
        angles = None if rotation is None else heads.pairs(rotation, q)
        if angles is not None and not added:
            angles = heads.extend_angles(angles, M)
        q, k = heads.norm_heads(q, k, self.norm_q, self.norm_k, angles)
        if text_BMD is not None and added:
            text_qkv = heads.by_head(self, text_BMD, self.add_q_proj, self.add_k_proj, self.add_v_proj)
            text_q, text_k = heads.norm_heads(text_qkv[0], text_qkv[1], self.norm_added_q, self.norm_added_k)
            q, k, v = (torch.cat(both, dim=1) for both in ((q, text_q), (k, text_k), (v, text_qkv[2])))
        # Attention as the library dispatches it, with what its processor was set to.
        processor: Any = getattr(self.processor, "theirs", self.processor)
        y_BND = dispatch_attention_fn(
            q,
            k,
            v,
            attn_mask=attention_mask,
            dropout_p=0.0,
            is_causal=False,
            backend=processor._attention_backend,
            parallel_config=processor._parallel_config,
        ).flatten(2)
        return self._out(y_BND.to(q.dtype), text_BMD)

    def _out(
        self, y_BND: torch.Tensor, text_BMD: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return both streams after their output layers, of which single-stream blocks have none."""
        if text_BMD is None:
            return y_BND, None
        y_BLD, z_BMD = torch.split(y_BND, [y_BND.shape[1] - text_BMD.shape[1], text_BMD.shape[1]], dim=1)
        if getattr(self, "to_out", None) is not None:
            y_BLD = self.to_out[1](self.to_out[0](y_BLD))
        if getattr(self, "to_add_out", None) is not None:
            z_BMD = self.to_add_out(z_BMD)
        return y_BLD, z_BMD


class AdaLayerNormContinuous(norms.AdaLayerNormContinuous):  # type: ignore[misc]
    """Fused norm before the output."""

    def forward(self, x: torch.Tensor, conditioning_embedding: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(self.silu(conditioning_embedding).to(x.dtype)).chunk(2, dim=1)
        return sites.modulate(self.norm, x, scale, shift)


_SECOND = {"norm2": (nn.LayerNorm,), "norm2_context": (nn.LayerNorm,)}
_CONTEXT = adaptive("norm1_context", norms.AdaLayerNormZero)
_DUAL = (theirs.HunyuanVideoTransformerBlock, theirs.HunyuanVideoTokenReplaceTransformerBlock)
_SINGLE = (theirs.HunyuanVideoSingleTransformerBlock, theirs.HunyuanVideoTokenReplaceSingleTransformerBlock)
_HEADS = {"norm_q": (norms.RMSNorm,), "norm_k": (norms.RMSNorm,)}
_TEXT_HEADS = {"norm_added_q": (norms.RMSNorm,), "norm_added_k": (norms.RMSNorm,)}
_ATTENTION = "6b3346c312a42c61b5d59a1b1818ccb2c7a52cac55d28648660c18cce1148d4e"
_OLDER = (
    "994bd9f80d24de4979c19b77ff54943f6869935074b3c8003f4d6ab2b6d03cb8",
)  # RMSNorm has a line more for NPUs
_CALLED = (theirs.HunyuanVideoAttnProcessor2_0.__call__, apply_rotary_emb)
SWAPS = (
    Swap(
        theirs.HunyuanVideoTransformerBlock,
        HunyuanVideoTransformerBlock,
        adaptive("norm1", norms.AdaLayerNormZero) | _CONTEXT | _SECOND,
        "5ac6adba990b0109d05319422c3d3f7314a334135fd3ee1eb42dee71f3ea7b0c",
    ),
    Swap(
        theirs.HunyuanVideoTokenReplaceTransformerBlock,
        HunyuanVideoTokenReplaceTransformerBlock,
        adaptive("norm1", theirs.HunyuanVideoTokenReplaceAdaLayerNormZero) | _CONTEXT | _SECOND,
        "f99560b785cfa180b5d861daba25ab59668803ee9d37854c591cd305a44f1ed4",
    ),
    Swap(
        theirs.HunyuanVideoSingleTransformerBlock,
        HunyuanVideoSingleTransformerBlock,
        adaptive("norm", norms.AdaLayerNormZeroSingle),
        "1c26ae4a6b9e8fb0cb7e850c381bfd6450dbb6860436c5aab0e7df9b443332dc",
    ),
    Swap(
        theirs.HunyuanVideoTokenReplaceSingleTransformerBlock,
        HunyuanVideoTokenReplaceSingleTransformerBlock,
        adaptive("norm", theirs.HunyuanVideoTokenReplaceAdaLayerNormZeroSingle),
        "80edfee1c31134a565a482fe07e99aabf9fc334a9bf6d91473bbd9db02fef7de",
    ),
    Swap(theirs.Attention, Attention, _HEADS | _TEXT_HEADS, _ATTENTION, _CALLED, _DUAL, _OLDER),
    Swap(theirs.Attention, Attention, _HEADS, _ATTENTION, _CALLED, _SINGLE, _OLDER),
    Swap(
        norms.AdaLayerNormContinuous,
        AdaLayerNormContinuous,
        {"norm": (nn.LayerNorm,)},
        "da3e50ebcd024fc2040e7e4afc211c8717142198b743486e507c0770fa4b2909",
    ),
)
LEFT = {
    theirs.HunyuanVideoIndividualTokenRefinerBlock: "its norms have no modulation and see the text alone",
}
