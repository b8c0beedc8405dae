"""Two-stream diffusion transformer of video and text with joint attention (MMDiT).

Sources: Esser et al., "Scaling Rectified Flow Transformers", 2024, section 4, and the dual-stream blocks of
Kong et al., "HunyuanVideo", 2024. Each stream has its own weights and modulation. No pooled text enters the
modulation. Text has no rotary positions, since its encoder has added positions.
"""

from collections.abc import Sequence

import torch
from torch import nn

from reelweave.train.config.model import MMDiTConfig
from reelweave.train.models.adaln import gate_residual, gate_residual_modulate, modulate
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.segments import Segments
from reelweave.train.models.dit import EPS, DiT, MultiHeadAttention, Rotation, TokenLayout
from reelweave.train.models.modulation import modulation
from reelweave.train.models.precision.float32 import at_least_float32


class TextSource(nn.Module):
    """Text stream of the last block: keys and values only, with their modulation."""

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.key_norm = nn.RMSNorm(config.hidden // config.heads, eps=EPS)
        self.modulation = modulation(config.hidden, 2, config.adaln_rank)

    def project(self, h_BMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, [B, H, M, head width] each."""
        v_BHMD = self._split(self.value(h_BMD))
        # As in `MultiHeadAttention`, norms are in float32 at any dtype of activations.
        k_BHMD = self.key_norm(at_least_float32(self._split(self.key(h_BMD))))
        return k_BHMD.to(v_BHMD.dtype), v_BHMD

    def _split(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(x_BLD, 2, (self.heads, -1)).transpose(1, 2)


class StreamLayers(nn.Module):
    """Weights of one stream in a block."""

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden, config.inner
        self.attend = MultiHeadAttention(hidden, config.heads)
        self.mlp = nn.Sequential(nn.Linear(hidden, inner), nn.GELU("tanh"), nn.Linear(inner, hidden))
        self.modulation = modulation(hidden, 6, config.adaln_rank)

    def finish(
        self,
        x_BLD: torch.Tensor,
        y_BHLD: torch.Tensor,
        vectors: Sequence[torch.Tensor],
        samples: Segments | None,
    ) -> torch.Tensor:
        """Return the stream after attention and MLP; ``vectors`` are gate, shift, scale and gate."""
        gate, shift, scale, last_gate = vectors
        y_BLD = self.attend.out(y_BHLD.transpose(1, 2).flatten(2))
        x_BLD, h_BLD = gate_residual_modulate(x_BLD, y_BLD, gate, shift, scale, samples)
        return gate_residual(x_BLD, self.mlp(h_BLD), last_gate, samples)


class JointBlock(nn.Module):
    """Joint attention and an MLP for each stream; the identity at initialization (AdaLN-zero).

    Args:
        config: architecture.
        last: True for the last block, whose text stream is unused and only has keys and values.
    """

    def __init__(self, config: MMDiTConfig, last: bool) -> None:
        super().__init__()
        self.video = StreamLayers(config)
        self.text: StreamLayers | TextSource = TextSource(config) if last else StreamLayers(config)

    def forward(
        self,
        x_BLD: torch.Tensor,
        text_BMD: torch.Tensor,
        condition_BD: torch.Tensor,
        rotation: Rotation,
        joint: JointSequence,
        pack: TokenLayout,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both streams, [B, L, D] and [B, M, D]."""
        video_vectors = self.video.modulation(condition_BD).chunk(6, dim=1)
        h_BLD = modulate(x_BLD, video_vectors[0], video_vectors[1], pack.samples)
        q_BHLD, *kv = self.video.attend.project(h_BLD, h_BLD, rotation)
        if isinstance(self.text, TextSource):
            shift, scale = self.text.modulation(condition_BD).chunk(2, dim=1)
            text_kv = self.text.project(modulate(text_BMD, shift, scale, pack.captions))
            y_BHLD = joint.last.attend(q_BHLD, *map(joint.join, kv, text_kv))
            return self.video.finish(x_BLD, y_BHLD, video_vectors[2:], pack.samples), text_BMD
        text_vectors = self.text.modulation(condition_BD).chunk(6, dim=1)
        g_BMD = modulate(text_BMD, text_vectors[0], text_vectors[1], pack.captions)
        text_qkv = self.text.attend.project(g_BMD, g_BMD, None)
        joint_qkv = map(joint.join, (q_BHLD, *kv), text_qkv)
        y_BHLD, z_BHMD = joint.part(joint.both.attend(*joint_qkv))
        x_BLD = self.video.finish(x_BLD, y_BHLD, video_vectors[2:], pack.samples)
        return x_BLD, self.text.finish(text_BMD, z_BHMD, text_vectors[2:], pack.captions)


class MMDiT(DiT):
    """A `DiT` of `JointBlock`, with text as a second stream instead of a cross-attention source."""

    config: MMDiTConfig
    joint_text = True

    def make_blocks(self) -> list[nn.Module]:
        last = self.config.layers - 1
        return [JointBlock(self.config, index == last) for index in range(self.config.layers)]

    def through_blocks(
        self,
        x_BLD: torch.Tensor,
        condition_BD: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        rotation: Rotation,
        pack: TokenLayout,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if pack.joint is not None:
            joint = pack.joint
        elif pack.samples is not None and pack.captions is not None:
            joint = JointSequence.of_packed(pack.samples, pack.captions)
        else:
            joint = JointSequence.pad(x_BLD.shape[1], context_BMD.shape[1], mask_BM)
        for block in self.repeated():
            x_BLD, context_BMD = block(x_BLD, context_BMD, condition_BD, rotation, joint, pack)
        return x_BLD, context_BMD
