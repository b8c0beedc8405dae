"""Runs of equal blocks of a model, cut to a few of them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import nn

from reelweave.train.models.denoiser import Denoiser


def equal_runs(dit: Denoiser) -> list[int]:
    """Return the lengths of the runs of consecutive blocks with equal classes and weights."""
    return [len(list(run)) for _, run in groupby(dit.repeated(), key=_description)]


def cut_runs(dit: Denoiser, lengths: Sequence[int]) -> None:
    """Remove blocks in place, so that each run of equal ones keeps a number of them.

    Args:
        dit: model before its blocks are wrapped or sharded.
        lengths: number of blocks to keep of each run, as `equal_runs` counts them.
    """
    dropped: set[int] = set()
    for length, (_, run) in zip(lengths, groupby(dit.repeated(), key=_description), strict=True):
        dropped |= {id(block) for block in list(run)[length:]}
    for blocks in [module for module in dit.modules() if isinstance(module, nn.ModuleList)]:
        for index in reversed(range(len(blocks))):
            if id(blocks[index]) in dropped:
                del blocks[index]


def _description(block: nn.Module) -> tuple[Any, ...]:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    return (
        [type(module) for module in block.modules()],
        [(name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors],
    )
