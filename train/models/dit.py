"""Diffusion transformer for video latents, with text through cross-attention.

The block is Peebles and Xie's DiT (2023) with NeMo's arrangement for video (Patel et al. 2025, section 5):
self-attention over all tokens, cross-attention to the text and an MLP. Each is modulated and gated by the
timestep (nine vectors per block), with RMS-normalized queries and keys in every head.
"""

import math
import re
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import torch
from torch import nn

from reelweave.train.config.model import ModelConfig
from reelweave.train.kernels.qk_norm.operator import qk_norm
from reelweave.train.measure.flops import TIME_WIDTH, Flops, sample_flops
from reelweave.train.models.adaln import gate_residual, gate_residual_modulate, modulate
from reelweave.train.models.attention.attend import Attend, Dense
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.packed import BlockDiagonal
from reelweave.train.models.attention.patches import Patch, cut, join
from reelweave.train.models.attention.positions import Window, place_features, rotary_angles, time_features
from reelweave.train.models.attention.segments import Segments, valid_rows
from reelweave.train.models.denoiser import Denoiser, InputRows
from reelweave.train.models.modulation import ZeroLinear, modulation
from reelweave.train.models.precision.float32 import numerics_on
from reelweave.train.models.transfer import send_one

EPS = 1e-6

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of each token's rotary angles, [L, head width / 2]."""


class TokenLayout(NamedTuple):
    """Layout of tokens that are not a batch of whole samples of one shape.

    Attributes:
        samples: segments of samples of different shapes in one sequence; None: each row is a sample.
        self_attend: self-attention pattern; None: all tokens of a sample.
        text: cross-attention pattern for packed captions; None: all tokens of a sample's caption.
        local: local part of the sequence under context parallelism.
        local_text: local part of text that a published model has in its sequence.
        captions: segments of packed captions.
        grids: local tokens of each sample along time, rows and columns; a single entry for equal samples.
        within_frames: spatial attention across ranks, where no whole frames are local.
        joint: layout of the joint sequence of video and text, where not all of it is local.
    """

    samples: Segments | None = None
    self_attend: Attend | None = None
    text: Attend | None = None
    local: slice | torch.Tensor = slice(None)
    local_text: slice = slice(None)
    captions: Segments | None = None
    grids: Sequence[tuple[int, int, int]] = ()
    within_frames: "Callable[[MultiHeadAttention, torch.Tensor], torch.Tensor] | None" = None
    joint: JointSequence | None = None


WHOLE_SAMPLES = TokenLayout()


class MultiHeadAttention(nn.Module):
    """Multi-head attention of x to a source, with queries and keys normalized per head."""

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
        rotation: Rotation | None = None,
        mask_BM: torch.Tensor | None = None,
        blocks: Attend | None = None,
    ) -> torch.Tensor:
        """Attend from ``x`` to ``source`` where ``mask`` is true, or within ``blocks``; [B, L, D].

        Args:
            x_BLD: tokens of the queries.
            source_BMD: tokens of keys and values; ``x_BLD`` itself for self-attention.
            rotation: cosines and sines [L, head width / 2] of the rotary positions of both.
            mask_BM: True for valid source tokens; at least one per sample. None: all.
            blocks: attention pattern instead of the mask.
        """
        q_BHLD, k_BHMD, v_BHMD = self.project(x_BLD, source_BMD, rotation)
        if blocks is None:
            blocks = Dense(mask_BM)
        y_BHLD = blocks.attend(q_BHLD, k_BHMD, v_BHMD)
        y_BLD: torch.Tensor = self.out(y_BHLD.transpose(1, 2).flatten(2))
        return y_BLD

    def project(
        self, x_BLD: torch.Tensor, source_BMD: torch.Tensor, rotation: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries [B, H, L, head width] of ``x``, keys and values [B, H, M, head width] of ``source``."""
        # Autograd sums gradients in the order of these three; another order changes last bits.
        v_BMHD = self._split(self.value(source_BMD))
        q_BLHD, k_BMHD = self._split(self.query(x_BLD)), self._split(self.key(source_BMD))
        weights, numerics = (self.query_norm.weight, self.key_norm.weight), numerics_on(x_BLD)
        q_BLHD, k_BMHD = qk_norm(q_BLHD, k_BMHD, *weights, EPS, rotation, numerics=numerics)
        return q_BLHD.transpose(1, 2), k_BMHD.transpose(1, 2), v_BMHD.transpose(1, 2)

    def _split(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """Return a view split by heads, [B, L, heads, head width]."""
        return torch.unflatten(x_BLD, 2, (self.heads, -1))


class Block(nn.Module):
    """Self-attention, cross-attention and MLP; the identity at initialization (AdaLN-zero)."""

    uses_fused_operators = True  # tells `reelweave.train.kernels.patch` to skip such blocks

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden, config.inner
        self.attend = MultiHeadAttention(hidden, config.heads)
        self.cross_attend = MultiHeadAttention(hidden, config.heads)
        self.mlp = nn.Sequential(nn.Linear(hidden, inner), nn.GELU("tanh"), nn.Linear(inner, hidden))
        self.modulation = modulation(hidden, 9, config.adaln_rank)

    def forward(
        self,
        x_BLD: torch.Tensor,
        condition_BD: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        rotation: Rotation,
        pack: TokenLayout = WHOLE_SAMPLES,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D]."""
        branches: Branches = (
            lambda h_BLD: self.attend(h_BLD, h_BLD, rotation, blocks=pack.self_attend),
            lambda h_BLD: self.cross_attend(h_BLD, context_BMD, mask_BM=mask_BM, blocks=pack.text),
            self.mlp,
        )
        return through(x_BLD, branches, self.modulation(condition_BD), pack.samples)


Branches = Sequence[Callable[[torch.Tensor], torch.Tensor]]


def through(
    x_BLD: torch.Tensor, branches: Branches, vectors_BV: torch.Tensor, samples: Segments | None
) -> torch.Tensor:
    """Return ``x + gate * branch(norm(x) * (1 + scale) + shift)`` for one branch after the other; [B, L, D].

    Args:
        x_BLD: tokens.
        branches: functions from tokens to tokens.
        vectors_BV: shift, scale and gate of each branch in turn, [B, 3 * branches * D].
        samples: segments of packed tokens.
    """
    vectors = vectors_BV.chunk(3 * len(branches), dim=1)
    h_BLD = modulate(x_BLD, vectors[0], vectors[1], samples)
    for index, branch in enumerate(branches[:-1]):
        gate, shift, scale = vectors[3 * index + 2 : 3 * index + 5]
        x_BLD, h_BLD = gate_residual_modulate(x_BLD, branch(h_BLD), gate, shift, scale, samples)
    return gate_residual(x_BLD, branches[-1](h_BLD), vectors[-1], samples)


class DiT(Denoiser):
    """Transformer over patches of latents; its embedding and head are shared by all built-in kinds.

    Args:
        config: architecture.
        channels: channels of the latents.
        text_width: width of the text context.
        condition_channels: channels of the inputs behind the noisy latents.

    Attributes:
        patch_values: number of predicted values in a token's patch, V.
    """

    def __init__(
        self, config: ModelConfig, channels: int, text_width: int, condition_channels: int = 0
    ) -> None:
        super().__init__()
        self.config, self.patch = config, config.patch
        self.channels, self.text_width = channels, text_width
        self.condition_channels = condition_channels
        self.patch_values = channels * math.prod(config.patch)
        self.embed = nn.Linear(
            self.patch_values + condition_channels * math.prod(config.patch), config.hidden
        )
        self.embed_time = nn.Sequential(
            nn.Linear(TIME_WIDTH, config.hidden),
            nn.SiLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.SiLU(),
        )
        self.embed_text = nn.Linear(text_width, config.hidden)
        self.blocks = nn.ModuleList(self.make_blocks())
        self.modulation = modulation(config.hidden, 2, config.adaln_rank)
        self.head = ZeroLinear(config.hidden, self.patch_values)

    def make_blocks(self) -> list[nn.Module]:
        """Build the blocks in order."""
        return [Block(self.config) for _ in range(self.config.layers)]

    def repeated(self) -> Sequence[nn.Module]:
        return [block for block in self.blocks if not isinstance(block, nn.Identity)]

    def keep(self, indices: Container[int]) -> None:
        """Drop all other blocks, and the embedding and head unless their neighbouring block stays.

        Remaining weights keep their names. Times and text, inputs of every block, are embedded as before.
        """
        last = len(self.blocks) - 1
        for index in range(last + 1):
            if index not in indices:
                self.blocks[index] = nn.Identity()
        if 0 not in indices:
            del self.embed
            if self.joint_text:
                del self.embed_text
        if last not in indices:
            del self.modulation, self.head

    @property
    def full_heads(self) -> int:
        """Number of heads of attention over all tokens; 0 without such attention."""
        return self.config.heads

    def takes_tokens(self, name: str) -> bool:
        return not re.search(r"modulation|cross_attend\.(key|value)$|\.text\.", name)

    def layer_rows(self, name: str) -> InputRows:
        if re.search(r"modulation|^embed_time", name):
            return "sample"
        return "video" if self.takes_tokens(name) and name != "embed_text" else "text"

    def flops(self, latent_size: Sequence[int], text_tokens: int) -> Flops:
        channels = (self.channels, self.condition_channels)
        return sample_flops(self.config, channels, self.text_width, latent_size, text_tokens)

    def forward(
        self,
        x_BCTHW: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        window: Window | None = None,
    ) -> torch.Tensor:
        grid, patch = self.grid(x_BCTHW.shape[2:]), self.config.patch
        full_grid, pack = grid, WHOLE_SAMPLES
        if window is not None:
            full_grid, local = self.place_window(x_BCTHW.shape[2:], window)
            pack = TokenLayout(local=send_one(local, x_BCTHW.device), grids=[grid])
        values_BLV = self.denoise(tokens(x_BCTHW, patch), t_B, context_BMD, mask_BM, [full_grid], pack)
        return join(values_BLV.reshape(len(t_B), *grid, self.channels, -1), patch)

    def forward_packed(
        self,
        latents: Sequence[torch.Tensor],
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
    ) -> list[torch.Tensor]:
        grids, patch = [self.grid(x_CTHW.shape[1:]) for x_CTHW in latents], self.config.patch
        samples = Segments.of([math.prod(grid) for grid in grids], t_B.device)
        text = Segments.of(mask_BM.sum(dim=1).tolist(), t_B.device)
        pack = TokenLayout(
            samples, BlockDiagonal(samples, samples), BlockDiagonal(samples, text), captions=text
        )
        values_1LV = torch.cat([tokens(x_CTHW[None], patch) for x_CTHW in latents], dim=1)
        values_1LV = self.denoise(values_1LV, t_B, valid_rows(context_BMD, mask_BM), None, grids, pack)
        parts = torch.split(values_1LV, samples.lengths, dim=1)
        return [
            join(part_1LV.reshape(1, *grid, self.channels, -1), patch)[0]
            for part_1LV, grid in zip(parts, grids, strict=True)
        ]

    def denoise(
        self,
        values_BLV: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        grids: Sequence[tuple[int, int, int]],
        pack: TokenLayout = WHOLE_SAMPLES,
    ) -> torch.Tensor:
        """Return the prediction for the patch of each local token, [B, L, V].

        Args:
            values_BLV: noisy values of each patch, `tokens` of the latents.
            t_B: timesteps, as in `forward`.
            context_BMD: text embeddings, as in `forward`, or packed.
            mask_BM: mask, as in `forward`; None also for a packed context.
            grids: token grids of the whole sequence, in order.
            pack: layout of the tokens.
        """
        x_BLD, context_BMD = self.enter(values_BLV, context_BMD, grids, pack.local)
        condition_BD = self.embed_time(time_features(t_B, TIME_WIDTH))
        rotation = self.rotation(grids, pack.local, x_BLD.device)
        pack = pack._replace(grids=pack.grids or grids)
        streams = self.through_blocks(x_BLD, condition_BD, context_BMD, mask_BM, rotation, pack)
        return self.leave(streams, condition_BD, pack.samples)

    def enter(
        self,
        values_BLV: torch.Tensor,
        context_BMD: torch.Tensor,
        grids: Sequence[tuple[int, int, int]],
        local: slice | torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embed the tokens of video, [B, L, D], and of text, [B, M, D].

        Args:
            values_BLV: the same as in `denoise`.
            context_BMD: the same as in `denoise`.
            grids: the same as in `denoise`.
            local: local tokens of the grids' sequence.
        """
        x_BLD = self.embed(values_BLV)
        places_LD = self.places(grids, local, x_BLD.device)
        x_BLD = x_BLD if places_LD is None else x_BLD + places_LD.to(x_BLD.dtype)
        return x_BLD, self.embed_text(context_BMD)

    def places(
        self, grids: Sequence[tuple[int, int, int]], local: slice | torch.Tensor, device: torch.device
    ) -> torch.Tensor | None:
        """Return what embeddings of some tokens of the grids' sequence get added for their places, [L, D]."""
        if not self.config.absolute_positions:
            return None
        return torch.cat([place_features(grid, self.config.hidden, device) for grid in grids])[local]

    def rotation(
        self, grids: Sequence[tuple[int, int, int]], local: slice | torch.Tensor, device: torch.device
    ) -> Rotation:
        """Return cosines and sines of some tokens of the grids' sequence, [L, head width / 2]."""
        head_width = self.config.hidden // self.config.heads
        angles_LR = torch.cat([rotary_angles(grid, head_width, device) for grid in grids])[local]
        return angles_LR.cos(), angles_LR.sin()

    def through_blocks(
        self,
        x_BLD: torch.Tensor,
        condition_BD: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        rotation: Rotation,
        pack: TokenLayout,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of video and text after the last block, from embedded tokens, times and text."""
        for block in self.repeated():
            x_BLD = block(x_BLD, condition_BD, context_BMD, mask_BM, rotation, pack)
        return x_BLD, context_BMD

    def leave(
        self,
        streams: tuple[torch.Tensor, torch.Tensor],
        condition_BD: torch.Tensor,
        samples: Segments | None,
    ) -> torch.Tensor:
        """Return the prediction for each token's patch, [B, L, V], from the tokens after the last block."""
        shift, scale = self.modulation(condition_BD).chunk(2, dim=1)
        out_BLV: torch.Tensor = self.head(modulate(streams[0], shift, scale, samples))
        return out_BLV


def tokens(x_BCTHW: torch.Tensor, patch: Patch) -> torch.Tensor:
    """Cut latents into one token of V values per patch, [B, L, V]."""
    return cut(x_BCTHW, patch).flatten(4).flatten(1, 3)
