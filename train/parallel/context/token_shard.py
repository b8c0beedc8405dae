"""Local part of a batch or pack under context parallelism, by kind of model.

Weights are replicated. So are timesteps and text that is a cross-attention source, which each rank's tokens attend to
locally. Text within the sequence (MMDiT, CogVideoX, HunyuanVideo) is sharded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.sequence_parallel import clip_groups
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.packed import BlockDiagonal
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.attention.segments import Segments, valid_rows
from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT, TokenLayout, tokens
from reelweave.train.models.mmdit import MMDiT
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.st_dit import STDiT
from reelweave.train.models.transfer import send, send_one
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.slices import Grid, SliceExchange, WithinFrames, slice_orders
from reelweave.train.step.squared_errors import DenoisingInputs

Cuttable = DiT | DiffusersDenoiser
"""Models that support context parallelism: `denoise` runs on some tokens of a sequence."""


@dataclass(frozen=True, eq=False)
class TokenShard:
    """Local part of the model's inputs.

    Attributes:
        cut: number of video tokens of every rank.
        local: local video tokens among all that are given.
        grids: token grid of each sample of a pack; a single entry for equal samples.
        pack: layout of the local tokens, with their positions in ``grids``.
        counts: number of local tokens of each of ``grids``.
        timestep_input: timestep input, as in `denoise`, [B].
        context: text embeddings, as in `denoise`, [B, M, D].
        mask: text mask, as in `denoise`, [B, M].
        order: place of each video token among those of all ranks, int64 [L]; None: tokens are cut in their order.
    """

    cut: Partition
    local: slice | torch.Tensor
    grids: Sequence[Grid]
    pack: TokenLayout
    counts: Sequence[int]
    timestep_input: torch.Tensor
    context: torch.Tensor
    mask: torch.Tensor | None
    order: torch.Tensor | None = None

    def of(self, model: Cuttable, videos: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the values of the local patches, [B, L/P, V], of videos as in `squared_errors.Question`."""
        values_BLV = torch.cat([tokens(x_BCTHW, model.patch) for x_BCTHW in videos], dim=1)
        return values_BLV[:, self.local]

    def denoise(self, model: Cuttable, videos: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the predictions for these patches."""
        values_BLV = self.of(model, videos)
        return model.denoise(values_BLV, self.timestep_input, self.context, self.mask, self.grids, self.pack)

    def gather(self, values_BLV: torch.Tensor, ranks: ContextParallel) -> torch.Tensor:
        """Return the values of all patches in their order, [B, L, V], on every rank; gradients as in `gather`."""
        whole_BLV = ranks.gather(values_BLV, self.cut)
        return whole_BLV if self.order is None else whole_BLV.index_select(1, self.order)


def part_of(
    model: Denoiser, inputs: DenoisingInputs, ranks: ContextParallel, window: Window | None = None
) -> TokenShard:
    """Return this rank's part of a batch or a pack, which is the same on every rank.

    Args:
        model: the model.
        inputs: inputs of all tokens.
        ranks: ranks that share the tokens.
        window: place of a batch's latents in a larger video; None: they are whole.

    Raises:
        UsageError: the model supports no context parallelism, or there are too few tokens.
    """
    model = cuttable(model)
    part = _part_of(model, inputs, ranks)
    if window is None:
        return part
    grid, places_L = model.place_window(inputs.inputs[0].shape[2:], window)
    places_L = send_one(places_L, inputs.timestep_input.device)
    pack = part.pack._replace(local=places_L[part.local], grids=part.pack.grids or part.grids)
    if isinstance(model, STDiT) and isinstance(pack.within_frames, WithinFrames):
        rotation = model.rotation([grid], places_L[pack.within_frames.tokens], places_L.device)
        pack = pack._replace(within_frames=replace(pack.within_frames, rotation=rotation))
    return replace(part, grids=[grid], pack=pack)


def _part_of(model: Cuttable, inputs: DenoisingInputs, ranks: ContextParallel) -> TokenShard:
    grids = [model.grid(x_BCTHW.shape[2:]) for x_BCTHW in inputs.inputs]
    if isinstance(model, MMDiT):
        return _two_streams(grids, inputs, ranks)
    if isinstance(model, STDiT):
        return _by_place(model, grids, inputs, ranks)
    if isinstance(model, DiffusersDenoiser):
        if inputs.packed:
            raise model.no_packs()
        text_BM = model.text_in_sequence(inputs.known_mask, ranks.size)
        if text_BM is not None:
            return _interleave_text(grids, text_BM, bool(model.pooled_width), inputs, ranks)
    cut = ranks.cut(sum(map(math.prod, grids)))
    return _one_stream(grids, cut, TokenLayout(local=cut.part(ranks.rank)), inputs, ranks)


def cuttable(model: Denoiser) -> Cuttable:
    """Return the model if it supports context parallelism.

    Raises:
        UsageError: the model does not support it.
    """
    if not isinstance(model, Cuttable):
        raise UsageError(
            f"a {type(model).__name__} cannot be cut over context-parallel ranks: leave parallel.ring and"
            " parallel.ulysses at 1"
        )
    return model


def check_heads(model: Cuttable, ulysses: int, tp: int = 1) -> None:
    """Refuse ranks of Ulysses that do not divide the model's heads, before anything is sent.

    Args:
        model: the model.
        ulysses: number of ranks that exchange heads.
        tp: number of ranks that have divided the heads already.

    Raises:
        UsageError: they do not divide.
    """
    heads = model.full_heads
    if heads % (ulysses * tp):
        degrees = ", ".join(str(n) for n in range(1, heads // tp + 1) if heads % (n * tp) == 0)
        divided = f" and parallel.tp={tp}" * (tp > 1)
        raise UsageError(
            f"parallel.ulysses={ulysses}{divided} must divide the model's {heads} heads: take {degrees or 'fewer'};"
            " parallel.ring takes any number of ranks"
        )


def _one_stream(
    grids: Sequence[Grid], cut: Partition, pack: TokenLayout, inputs: DenoisingInputs, ranks: ContextParallel
) -> TokenShard:
    """Return the part of a model with text in cross-attention.

    Args:
        grids: token grids of the samples.
        cut: partition of the tokens; samples follow each other in the order of the ranks.
        pack: local tokens.
        inputs: inputs and targets of all tokens.
        ranks: ranks that share the tokens.
    """
    timestep_input, context, mask = inputs.timestep_input, inputs.context, inputs.padding_mask
    if not inputs.packed:
        pack = pack._replace(self_attend=ranks.attend_dense(cut))
        return TokenShard(
            cut, pack.local, grids, pack, [cut.lengths[ranks.rank]], timestep_input, context, mask
        )
    samples = Segments.of(list(map(math.prod, grids)), timestep_input.device)
    counts_n = cut.counts(samples.lengths)[ranks.rank]
    # Drop samples without a local token, with their text.
    present = [index for index, count in enumerate(counts_n) if count]
    mask = inputs.known_mask[present]
    indices = send_one(torch.tensor(present), timestep_input.device)
    timestep_input, context = timestep_input.index_select(0, indices), context.index_select(0, indices)
    parts = Segments.of([counts_n[index] for index in present], timestep_input.device)
    text = Segments.of(mask.sum(dim=1).tolist(), timestep_input.device)
    self_attend = ranks.attend_packed(cut, samples)
    pack = pack._replace(samples=parts, self_attend=self_attend, text=BlockDiagonal(parts, text))
    rows = valid_rows(context, mask)
    return TokenShard(cut, pack.local, grids, pack, counts_n, timestep_input, rows, None)


def _by_place(
    model: STDiT, grids: Sequence[Grid], inputs: DenoisingInputs, ranks: ContextParallel
) -> TokenShard:
    """Return the part of an ST-DiT, sharded by place, with an exchange to whole frames per layer."""
    rank, device = ranks.rank, inputs.timestep_input.device
    orders = slice_orders(tuple(grids), ranks.size, rank)
    by_place, by_frame = orders.by_place, orders.by_frame
    tokens_M, local, order = send([by_frame.tokens(rank), by_place.tokens(rank), orders.order], device)
    within_frames = WithinFrames(
        go=SliceExchange.of(orders.go, ranks.group, device),
        back=SliceExchange.of(orders.back, ranks.group, device),
        frames=SpatialTemporalAttention(by_frame.grids[rank], "frame"),
        tokens=tokens_M,
        rotation=model.rotation(grids, tokens_M, device),
    )
    pack = TokenLayout(local=local, grids=by_place.grids[rank], within_frames=within_frames)
    cut = Partition(tuple(sum(map(math.prod, on_rank)) for on_rank in by_place.grids))
    part = _one_stream(grids, cut, pack, inputs, ranks)
    return replace(part, order=order)


def _two_streams(grids: Sequence[Grid], inputs: DenoisingInputs, ranks: ContextParallel) -> TokenShard:
    """Return the part of a model with a text stream, which is sharded as well, so that each token counts once.

    The sharded sequence is the joint one: each sample's video, then its text. All ranks thus have equally many
    tokens, some of one stream alone.
    """
    timestep_input, context, mask = inputs.timestep_input, inputs.context, inputs.known_mask
    text_lengths = mask.sum(dim=1).tolist() if inputs.packed else [mask.shape[1]]
    videos, texts = (
        Segments.of(n, timestep_input.device) for n in (list(map(math.prod, grids)), text_lengths)
    )
    # Each sample's video and text lie behind each other, and ranks cut the whole; then each stream has its cut.
    pairs = list(zip(videos.lengths, texts.lengths, strict=True))
    cut = ranks.cut(sum(map(sum, pairs)))
    counts_Pn = cut.counts([length for pair in pairs for length in pair])
    video_cut, text_cut = (
        Partition(tuple(sum(counts[first::2]) for counts in counts_Pn)) for first in (0, 1)
    )
    video, text = video_cut.part(ranks.rank), text_cut.part(ranks.rank)
    video_counts, own_text = (counts_Pn[ranks.rank][first::2] for first in (0, 1))
    # Attention over both streams, and of the last block over queries of the video alone.
    if inputs.packed:
        joint = Segments.of(list(map(sum, pairs)), timestep_input.device)
        both = ranks.attend_packed(cut, joint)
        last = ranks.attend_packed(cut, joint, queries=(video_cut, videos))
        pack = TokenLayout(
            _clip_segments(videos, video, video_counts), captions=_clip_segments(texts, text, own_text)
        )
        context = valid_rows(context, mask)
    else:
        padded = inputs.padding_mask is not None
        seen_BN = F.pad(mask, (video_cut.tokens, 0), value=True) if padded else None
        both = ranks.attend_dense(cut, seen_BN, None, context.device)
        last = ranks.attend_dense(cut, seen_BN, video_cut, context.device)
        pack = TokenLayout()
    pack = pack._replace(local=video, joint=JointSequence(video_counts, own_text, both, last))
    return TokenShard(video_cut, video, grids, pack, video_counts, timestep_input, context[:, text], None)


def _interleave_text(
    grids: Sequence[Grid],
    text_BM: torch.Tensor,
    pooled: bool,
    inputs: DenoisingInputs,
    ranks: ContextParallel,
) -> TokenShard:
    """Return the part of a published model with text in its sequence; each rank has a part of both.

    Attention takes keys in any order, so the sequence is each rank's video, then its text. Every rank has video: these
    models' forwards fail without.

    Args:
        grids: token grids of the samples.
        text_BM: mask of the text tokens in the sequence.
        pooled: True if the context has a row that is no token.
        inputs: inputs and targets of all tokens.
        ranks: ranks that share the tokens.
    """
    video, text = ranks.cut(math.prod(grids[0])), Partition.even(text_BM.shape[1], ranks.size)
    pairs = zip(video.lengths, torch.split(text_BM, list(text.lengths), dim=1), strict=True)
    seen_BN = torch.cat(
        [mask for n, part in pairs for mask in (part.new_ones(len(part), n), part)],
        dim=1,
    )
    cut = Partition(tuple(map(sum, zip(video.lengths, text.lengths, strict=True))))
    padded = not bool(text_BM.all())
    attend = ranks.attend_dense(cut, seen_BN if padded else None, None, inputs.context.device)
    video_count, own_text = video.lengths[ranks.rank], text.lengths[ranks.rank]
    pack = TokenLayout(
        self_attend=attend,
        local=video.part(ranks.rank),
        local_text=text.part(ranks.rank),
        joint=JointSequence([video_count], [own_text], attend, attend),
    )
    # The padding of text that is shorter than the number of ranks.
    more = max(0, text.tokens + pooled - inputs.mask.shape[1])
    context, mask = F.pad(inputs.context, (0, 0, 0, more)), F.pad(inputs.mask, (0, more))
    return TokenShard(video, pack.local, grids, pack, [video_count], inputs.timestep_input, context, mask)


def _clip_segments(samples: Segments, span: slice, counts_n: list[int]) -> Segments:
    """Return the segments of some adjacent tokens with their local counts."""
    return Segments(counts_n, clip_groups(samples.cu_seqlens, span.start, span.stop))
