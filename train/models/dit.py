"""A diffusion transformer for video latents with text through cross-attention.

The block is Peebles and Xie's DiT (2023) with NeMo's arrangement for video (Patel et al. 2025, section 5):
self-attention over all tokens, cross-attention to the text and an MLP, each modulated and gated by the
timestep (nine vectors a block), with RMS-normalised queries and keys in every head.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from loader.errors import UsageError
from train.config import DiTConfig
from train.kernels.qk_norm import qk_norm
from train.models.adaln import gate_residual, gate_residual_modulate, modulate
from train.models.attend import Attend
from train.models.packed_attention import BlockDiagonal
from train.models.patches import Patch, cut, join
from train.models.positions import rotary_angles, time_features
from train.models.precision import numerics_on
from train.models.segments import Segments

TIME_WIDTH = 256
EPS = 1e-6


class Pack(NamedTuple):
    """How the tokens lie where they are not a batch of whole samples of one shape.

    Attributes:
        samples: the tokens of samples of different shapes in one sequence; None: each row is a sample.
        own: how tokens see each other; None: all of a sample.
        text: which see which tokens of the captions, packed alike; None: all of a sample's.
        here: the part of the sequence that is present, where the rest lies elsewhere.
    """

    samples: Segments | None = None
    own: Attend | None = None
    text: Attend | None = None
    here: slice = slice(None)


NOT_PACKED = Pack()


class Attention(nn.Module):
    """Multi-head attention of x to a source, with queries and keys normalised per head."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.query_norm = nn.RMSNorm(hidden // heads, eps=EPS)
        self.key_norm = nn.RMSNorm(hidden // heads, eps=EPS)
        self.out = nn.Linear(hidden, hidden)

    def forward(
        self,
        x_BLD: torch.Tensor,
        source_BMD: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        mask_BM: torch.Tensor | None = None,
        blocks: Attend | None = None,
    ) -> torch.Tensor:
        """Attends from ``x`` to ``source`` where ``mask`` is true, or within ``blocks``; [B, L, D].

        Args:
            x_BLD: the tokens that ask.
            source_BMD: the tokens that answer; ``x_BLD`` itself for self-attention.
            rotation: cosines and sines [L, head width / 2] of the rotary positions of both.
            mask_BM: which source tokens count; at least one per sample. None: all.
            blocks: who sees whom, instead of the mask.
        """
        q_BLHD, k_BMHD, v_BMHD = map(
            self._split, (self.query(x_BLD), self.key(source_BMD), self.value(source_BMD))
        )
        weights, numerics = (self.query_norm.weight, self.key_norm.weight), numerics_on(x_BLD)
        q_BLHD, k_BMHD = qk_norm(q_BLHD, k_BMHD, *weights, EPS, rotation, numerics=numerics)
        q_BHLD, k_BHMD, v_BHMD = (t.transpose(1, 2) for t in (q_BLHD, k_BMHD, v_BMHD))
        if blocks is None:
            mask = None if mask_BM is None else mask_BM[:, None, None, :]
            y_BHLD = F.scaled_dot_product_attention(q_BHLD, k_BHMD, v_BHMD, attn_mask=mask)
        else:
            y_BHLD = blocks.attend(q_BHLD, k_BHMD, v_BHMD)
        y_BLD: torch.Tensor = self.out(y_BHLD.transpose(1, 2).flatten(2))
        return y_BLD

    def _split(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """By head, [B, L, heads, head width]; a view."""
        return x_BLD.view(*x_BLD.shape[:2], self.heads, -1)


class Block(nn.Module):
    """Self-attention, cross-attention and MLP; the identity at initialisation (AdaLN-zero)."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden, int(config.hidden * config.mlp_ratio)
        self.attend = Attention(hidden, config.heads)
        self.cross_attend = Attention(hidden, config.heads)
        self.mlp = nn.Sequential(nn.Linear(hidden, inner), nn.GELU("tanh"), nn.Linear(inner, hidden))
        self.modulation = zeroed(nn.Linear(hidden, 9 * hidden))

    def forward(
        self,
        x_BLD: torch.Tensor,
        condition_BD: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
        pack: Pack = NOT_PACKED,
    ) -> torch.Tensor:
        """One block; [B, L, D] to [B, L, D]."""
        samples = pack.samples
        vectors = self.modulation(condition_BD).chunk(9, dim=1)
        shift, scale, gate = vectors[:3]
        h_BLD = modulate(x_BLD, shift, scale, samples)
        y_BLD = self.attend(h_BLD, h_BLD, rotation, blocks=pack.own)
        shift, scale, next_gate = vectors[3:6]
        x_BLD, h_BLD = gate_residual_modulate(x_BLD, y_BLD, gate, shift, scale, samples)
        y_BLD = self.cross_attend(h_BLD, context_BMD, mask_BM=mask_BM, blocks=pack.text)
        shift, scale, last_gate = vectors[6:]
        x_BLD, h_BLD = gate_residual_modulate(x_BLD, y_BLD, next_gate, shift, scale, samples)
        return gate_residual(x_BLD, self.mlp(h_BLD), last_gate, samples)


class DiT(nn.Module):
    """Predicts, for noisy latents of any size, a tensor of the same shape.

    Args:
        config: the architecture.
        channels: channels of the latents.
        text_width: width of the text context.
    """

    def __init__(self, config: DiTConfig, channels: int, text_width: int) -> None:
        super().__init__()
        self.config = config
        t, h, w = config.patch
        patch_values = channels * t * h * w
        self.embed = nn.Linear(patch_values, config.hidden)
        self.embed_time = nn.Sequential(
            nn.Linear(TIME_WIDTH, config.hidden),
            nn.SiLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.SiLU(),
        )
        self.embed_text = nn.Linear(text_width, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.modulation = zeroed(nn.Linear(config.hidden, 2 * config.hidden))
        self.head = zeroed(nn.Linear(config.hidden, patch_values))

    def grid(self, latent_size: Sequence[int]) -> tuple[int, int, int]:
        """Tokens along time, rows and columns for latents of size (frames, rows, columns).

        Raises:
            UsageError: when the latents do not divide into whole patches.
        """
        (T, H, W), (t, h, w) = latent_size, self.config.patch
        if T % t or H % h or W % w:
            raise UsageError(f"latents of {T}x{H}x{W} do not divide into model.patch={t, h, w}")
        return T // t, H // h, W // w

    def forward(
        self, x_BCTHW: torch.Tensor, t_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        """The prediction, [B, C, T, H, W].

        Args:
            x_BCTHW: noisy latents.
            t_B: timesteps in [0, 1].
            context_BMD: text embeddings, [B, M, text_width].
            mask_BM: which of them count, bool; at least one per sample.
        """
        grid, patch = self.grid(x_BCTHW.shape[2:]), self.config.patch
        values_BLV = self.denoise(tokens(x_BCTHW, patch), t_B, context_BMD, mask_BM, [grid])
        return join(values_BLV.reshape(len(t_B), *grid, x_BCTHW.shape[1], -1), patch)

    def forward_packed(
        self,
        latents: Sequence[torch.Tensor],
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The predictions for samples of any shapes, run as one sequence without padding; [C, T, H, W] each.

        A sample's prediction is that of `forward` for the sample alone.

        Args:
            latents: noisy latents of B samples, [C, T, H, W] each.
            t_B: as of `forward`.
            context_BMD: as of `forward`.
            mask_BM: as of `forward`.
        """
        grids, patch = [self.grid(x_CTHW.shape[1:]) for x_CTHW in latents], self.config.patch
        samples = Segments.of([math.prod(grid) for grid in grids], t_B.device)
        text = Segments.of(mask_BM.sum(dim=1).tolist(), t_B.device)
        pack = Pack(samples, BlockDiagonal(samples, samples), BlockDiagonal(samples, text))
        values_1LV = torch.cat([tokens(x_CTHW[None], patch) for x_CTHW in latents], dim=1)
        values_1LV = self.denoise(values_1LV, t_B, context_BMD[mask_BM][None], None, grids, pack)
        parts = torch.split(values_1LV, samples.lengths, dim=1)
        return [
            join(part_1LV.reshape(1, *grid, len(x_CTHW), -1), patch)[0]
            for part_1LV, grid, x_CTHW in zip(parts, grids, latents, strict=True)
        ]

    def denoise(
        self,
        values_BLV: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        grids: Sequence[tuple[int, int, int]],
        pack: Pack = NOT_PACKED,
    ) -> torch.Tensor:
        """The prediction for each token's patch, [B, L, V], for the tokens that are present.

        Args:
            values_BLV: noisy values of each patch, `tokens` of the latents.
            t_B: as of `forward`.
            context_BMD: as of `forward`, or packed.
            mask_BM: as of `forward`; None where the context is packed.
            grids: of the whole sequence, one after the other.
            pack: how the tokens lie.
        """
        x_BLD = self.embed(values_BLV)
        condition_BD = self.embed_time(time_features(t_B, TIME_WIDTH))
        context_BMD = self.embed_text(context_BMD)
        head_width = self.config.hidden // self.config.heads
        angles_LR = torch.cat([rotary_angles(grid, head_width, x_BLD.device) for grid in grids])[pack.here]
        rotation = (angles_LR.cos(), angles_LR.sin())
        for block in self.blocks:
            x_BLD = block(x_BLD, condition_BD, context_BMD, mask_BM, rotation, pack)
        shift, scale = self.modulation(condition_BD).chunk(2, dim=1)
        out_BLV: torch.Tensor = self.head(modulate(x_BLD, shift, scale, pack.samples))
        return out_BLV


def tokens(x_BCTHW: torch.Tensor, patch: Patch) -> torch.Tensor:
    """The values of each patch, a token each, [B, L, V]."""
    return cut(x_BCTHW, patch).flatten(4).flatten(1, 3)


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with all weights zero, so that what it drives starts out switched off."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
