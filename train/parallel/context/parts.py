"""Local part of a batch or pack under context parallelism, by kind of model.

Weights are replicated. So are timesteps and, except for MMDiT, text, which each rank's tokens attend to
locally.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loader.errors import UsageError
from train.kernels.sequence_parallel import clip_groups
from train.models.attention.apart import Apart
from train.models.attention.joint import Joint
from train.models.attention.packed import BlockDiagonal
from train.models.attention.segments import Segments
from train.models.denoiser import Denoiser
from train.models.dit import DiT, Pack, tokens
from train.models.mmdit import MMDiT
from train.models.published.wan import Wan
from train.models.st_dit import STDiT
from train.parallel.context.context import ContextParallel
from train.parallel.context.cut import Cut
from train.parallel.context.slices import Grid, Slices, Way, WithinFrames
from train.step.squared_errors import Question

Cuttable = DiT | Wan
"""Models that support context parallelism: `denoise` runs on some tokens of a sequence."""


@dataclass(frozen=True, eq=False)
class Part:
    """Local part of the model's inputs.

    Attributes:
        grids: token grid of each sample of a pack; a single entry for equal samples.
        pack: layout of the local tokens.
        counts: number of local tokens of each of ``grids``.
        told: timestep input, as in `denoise`, [B].
        context: text embeddings, as in `denoise`, [B, M, D].
        mask: text mask, as in `denoise`, [B, M].
    """

    grids: Sequence[Grid]
    pack: Pack
    counts: Sequence[int]
    told: torch.Tensor
    context: torch.Tensor
    mask: torch.Tensor | None

    def of(self, model: Cuttable, videos: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the values of the local patches, [B, L/P, V], of videos as in `squared_errors.Question`."""
        values_BLV = torch.cat([tokens(x_BCTHW, model.patch) for x_BCTHW in videos], dim=1)
        return values_BLV[:, self.pack.here]

    def denoise(self, model: Cuttable, videos: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the predictions for these patches."""
        values_BLV = self.of(model, videos)
        return model.denoise(values_BLV, self.told, self.context, self.mask, self.grids, self.pack)


def part_of(model: Denoiser, asked: Question, ranks: ContextParallel) -> Part:
    """Return this rank's part of a batch or a pack, which is the same on every rank.

    Raises:
        UsageError: the model supports no context parallelism, or there are too few tokens.
    """
    model = cuttable(model)
    grids = [model.grid(x_BCTHW.shape[2:]) for x_BCTHW in asked.inputs]
    if isinstance(model, MMDiT):
        return _two_streams(grids, asked, ranks)
    if isinstance(model, STDiT):
        return _by_place(model, grids, asked, ranks)
    cut = ranks.cut(sum(map(math.prod, grids)))
    return _one_stream(grids, cut, Pack(here=cut.part(ranks.rank)), asked, ranks)


def cuttable(model: Denoiser) -> Cuttable:
    """Return the model if it supports context parallelism.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(model, DiT | Wan):
        raise UsageError(
            f"a {type(model).__name__} cannot be cut over context-parallel ranks: leave parallel.ring and"
            " parallel.ulysses at 1"
        )
    return model


def _one_stream(grids: Sequence[Grid], cut: Cut, pack: Pack, asked: Question, ranks: ContextParallel) -> Part:
    """Return the part of a model with text in cross-attention.

    Args:
        grids: token grids of the samples.
        cut: partition of the tokens; samples follow each other in the order of the ranks.
        pack: local tokens.
        asked: inputs and targets of all tokens.
        ranks: ranks that share the tokens.
    """
    told, context, mask = asked.told, asked.context, asked.mask
    if not asked.packed:
        pack = pack._replace(own=ranks.attend_dense(cut))
        return Part(grids, pack, [cut.lengths[ranks.rank]], told, context, mask)
    samples = Segments.of(list(map(math.prod, grids)), told.device)
    counts_n = cut.counts(samples.lengths)[ranks.rank]
    # Drop samples without a local token, with their text.
    present = [number for number, count in enumerate(counts_n) if count]
    told, context, mask = told[present], context[present], mask[present]
    parts = Segments.of([counts_n[number] for number in present], told.device)
    text = Segments.of(mask.sum(dim=1).tolist(), told.device)
    own = ranks.attend_packed(cut, samples)
    pack = pack._replace(samples=parts, own=own, text=BlockDiagonal(parts, text))
    return Part(grids, pack, counts_n, told, context[mask][None], None)


def _by_place(model: STDiT, grids: Sequence[Grid], asked: Question, ranks: ContextParallel) -> Part:
    """Return the part of an ST-DiT, sharded by place, with an exchange to whole frames per layer."""
    rank, device = ranks.rank, asked.told.device
    places, frames = (Slices.of(grids, axis, ranks.size) for axis in ("place", "frame"))
    within_frames = WithinFrames(
        go=Way.between(places, frames, rank, ranks.group, device),
        back=Way.between(frames, places, rank, ranks.group, device),
        frames=Apart(frames.grids[rank], "frame"),
        rotation=model.rotation(grids, frames.tokens(rank).to(device), device),
    )
    here = places.tokens(rank).to(device)
    pack = Pack(here=here, grids=places.grids[rank], within_frames=within_frames)
    cut = Cut(tuple(sum(map(math.prod, on_rank)) for on_rank in places.grids))
    return _one_stream(grids, cut, pack, asked, ranks)


def _two_streams(grids: Sequence[Grid], asked: Question, ranks: ContextParallel) -> Part:
    """Return the part of a model with a text stream, which is sharded as well, so that each token counts once.

    The sharded sequence is the joint one: each sample's video, then its text. All ranks thus have equally many
    tokens, some of one stream alone.
    """
    told, context, mask = asked.told, asked.context, asked.mask
    text_lengths = mask.sum(dim=1).tolist() if asked.packed else [mask.shape[1]]
    videos, texts = (Segments.of(n, told.device) for n in (list(map(math.prod, grids)), text_lengths))
    pairs = list(zip(videos.lengths, texts.lengths, strict=True))
    cut = ranks.cut(sum(map(sum, pairs)))
    counts_Pn = cut.counts([length for pair in pairs for length in pair])
    video_cut, text_cut = (Cut(tuple(sum(counts[first::2]) for counts in counts_Pn)) for first in (0, 1))
    video, text = video_cut.part(ranks.rank), text_cut.part(ranks.rank)
    own, own_text = (counts_Pn[ranks.rank][first::2] for first in (0, 1))
    if asked.packed:
        joint = Segments.of(list(map(sum, pairs)), told.device)
        both = ranks.attend_packed(cut, joint)
        last = ranks.attend_packed(cut, joint, queries=(video_cut, videos))
        pack = Pack(_clipped(videos, video, own), captions=_clipped(texts, text, own_text))
        context = context[mask][None]
    else:
        seen_BN = torch.cat([mask.new_ones(len(mask), video_cut.tokens), mask], dim=1)
        both = ranks.attend_dense(cut, seen_BN)
        last = ranks.attend_dense(cut, seen_BN, queries=video_cut)
        pack = Pack()
    pack = pack._replace(here=video, joint=Joint(own, own_text, both, last))
    return Part(grids, pack, own, told, context[:, text], None)


def _clipped(samples: Segments, here: slice, counts_n: list[int]) -> Segments:
    """Return the segments of some adjacent tokens with their local counts."""
    return Segments(counts_n, clip_groups(samples.cu_seqlens, here.start, here.stop))
