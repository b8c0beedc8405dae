"""A DiT on one part of each sequence: everything but self-attention needs nothing of the other parts.

Weights are whole on every rank; so are the text, to which each rank's tokens attend without communication,
and the timesteps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from loader.errors import UsageError
from train.models.config import DiTConfig
from train.models.denoiser import Denoiser
from train.models.dit import DiT, Pack, tokens
from train.models.packed_attention import BlockDiagonal
from train.models.precision import at_least_float32
from train.models.segments import Segments
from train.parallel.context import ContextParallel
from train.squared_errors import Question


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
    cuttable(dit)
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
    cuttable(dit)
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


@dataclass(frozen=True, eq=False)
class OfParts:
    """`train.squared_errors.SquaredErrors` of a model that sees one part of each sequence here.

    Errors have the value of the whole, the same on every rank, and the gradient of the part: gradients of what all
    ranks have are then summed over them once, as docs/parallel.md has it.

    Attributes:
        ranks: who shares the sequences.
    """

    ranks: ContextParallel

    def __call__(self, dit: Denoiser, asked: Question) -> torch.Tensor:
        """The mean squared error of each sample over its values, at least float32 [B]."""
        dit = cuttable(dit)
        conditions = (asked.told, asked.context, asked.mask, self.ranks)
        targets = torch.cat([tokens(target, dit.patch) for target in asked.targets], dim=1)
        cut = self.ranks.cut(targets.shape[1])
        if asked.packed:
            values = denoise_packed_part(dit, [x_1CTHW[0] for x_1CTHW in asked.inputs], *conditions)
        else:
            values = denoise_part(dit, asked.inputs[0], *conditions)
        squares = (at_least_float32(values) - targets[:, cut.part(self.ranks.rank)]).square().sum(dim=2)
        if asked.packed:
            counts = cut.counts([dit.tokens(target.shape[2:]) for target in asked.targets])[self.ranks.rank]
            part_B = torch.stack([own.sum() for own in torch.split(squares[0], counts)])
        else:
            part_B = squares.sum(dim=1)
        part_B = part_B / torch.tensor([target[0].numel() for target in asked.targets], device=part_B.device)
        whole_B = part_B.detach().clone()
        for group in (self.ranks.ulysses, self.ranks.ring):
            dist.all_reduce(whole_B, group=group)
        return part_B + (whole_B - part_B.detach())


def cuttable(model: Denoiser) -> DiT:
    """The model, if its sequences can be cut.

    Raises:
        UsageError: they cannot.
    """
    if not isinstance(model, DiT) or not isinstance(model.config, DiTConfig):
        kind = model.config.kind if isinstance(model, DiT) else type(model).__name__
        raise UsageError(
            f"a model of kind {kind} cannot be cut over context-parallel ranks: use train.model.kind=dit, or leave"
            " parallel.ring and parallel.ulysses at 1"
        )
    return model
