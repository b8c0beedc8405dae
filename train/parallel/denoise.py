"""A DiT on one part of each sequence: everything but self-attention needs nothing of the other parts.

Weights are whole on every rank; so are the text, to which each rank's tokens attend without communication,
and the timesteps.
"""

import math
from collections.abc import Sequence

import torch

from loader.errors import UsageError
from train.models.config import DiTConfig
from train.models.dit import DiT, Pack, tokens
from train.models.packed_attention import BlockDiagonal
from train.models.segments import Segments
from train.parallel.context import ContextParallel


def denoise_part(
    dit: DiT,
    x_BCTHW: torch.Tensor,
    t_B: torch.Tensor,
    context_BMD: torch.Tensor,
    mask_BM: torch.Tensor,
    ranks: ContextParallel,
) -> torch.Tensor:
    """This rank's part of the prediction of `DiT.forward`, as patches of tokens, [B, L/P, V].

    Args:
        dit: the model.
        x_BCTHW: as of `DiT.forward`, the same on every rank; so are all others.
        t_B: as of `DiT.forward`.
        context_BMD: as of `DiT.forward`.
        mask_BM: as of `DiT.forward`.
        ranks: who shares the sequence.
    """
    _check(dit)
    grid = dit.grid(x_BCTHW.shape[2:])
    cut = ranks.cut(math.prod(grid))
    pack = Pack(own=ranks.attend_dense(cut), here=cut.part(ranks.rank))
    values_BLV = tokens(x_BCTHW, dit.config.patch)[:, pack.here]
    return dit.denoise(values_BLV, t_B, context_BMD, mask_BM, [grid], pack)


def denoise_packed_part(
    dit: DiT,
    latents: Sequence[torch.Tensor],
    t_B: torch.Tensor,
    context_BMD: torch.Tensor,
    mask_BM: torch.Tensor,
    ranks: ContextParallel,
) -> torch.Tensor:
    """This rank's part of the predictions of `DiT.forward_packed`, as patches of tokens, [1, L/P, V].

    Args:
        dit: the model.
        latents: as of `DiT.forward_packed`, the same on every rank; so are all others.
        t_B: as of `DiT.forward_packed`.
        context_BMD: as of `DiT.forward_packed`.
        mask_BM: as of `DiT.forward_packed`.
        ranks: who shares the sequence.
    """
    _check(dit)
    grids = [dit.grid(x_CTHW.shape[1:]) for x_CTHW in latents]
    samples = Segments.of([math.prod(grid) for grid in grids], t_B.device)
    cut = ranks.cut(sum(samples.lengths))
    counts_n = cut.counts(samples.lengths)[ranks.rank]
    # Samples without a token here are left out, with their text.
    present = [number for number, count in enumerate(counts_n) if count]
    t_B, context_BMD, mask_BM = t_B[present], context_BMD[present], mask_BM[present]
    parts = Segments.of([counts_n[number] for number in present], t_B.device)
    text = Segments.of(mask_BM.sum(dim=1).tolist(), t_B.device)
    pack = Pack(parts, ranks.attend_packed(cut, samples), BlockDiagonal(parts, text), cut.part(ranks.rank))
    values_1LV = torch.cat([tokens(x_CTHW[None], dit.config.patch) for x_CTHW in latents], dim=1)
    return dit.denoise(values_1LV[:, pack.here], t_B, context_BMD[mask_BM][None], None, grids, pack)


def _check(dit: DiT) -> None:
    if not isinstance(dit.config, DiTConfig):
        raise UsageError(
            f"a model of kind {dit.config.kind} cannot be cut over context-parallel ranks; use train.model.kind=dit"
        )
