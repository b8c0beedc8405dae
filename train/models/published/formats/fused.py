"""Adapters of layers that are one in the original repository, and several in diffusers."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch

from reelweave.train.models.published.names.native import Held

Matrices = tuple[torch.Tensor, torch.Tensor]
"""Matrices of an adapter: A [rank, inputs] and B [outputs, rank]."""


def join_adapters(layer: Held, adapters: Mapping[str, Matrices], rows: Sequence[int]) -> Matrices:
    """Return the adapter of a native layer that acts as those of its sources do.

    Each source keeps its own inputs to B. With adapters of rank r on k of them, the rank is k r, and B is zero where
    the rows of one source meet the rank of another.

    Args:
        layer: the layer.
        adapters: adapters of some of its sources.
        rows: number of outputs of each source.
    """
    present = [source for source in layer.sources if source in adapters]
    if len(layer.pieces) == 1:
        return adapters[present[0]]
    ranks = [len(adapters[source][0]) for source in present]
    first = adapters[present[0]][1]
    blocks = []
    for source, outputs in zip(layer.sources, rows, strict=True):
        block = first.new_zeros(outputs, sum(ranks))
        if source in adapters:
            start = sum(ranks[: present.index(source)])
            B_OR = adapters[source][1]
            block[:, start : start + B_OR.shape[1]] = B_OR
        blocks.append(block)
    return torch.cat([adapters[source][0] for source in present]), layer.join(blocks)


def separate_adapters(
    layer: Held, A_RI: torch.Tensor, B_OR: torch.Tensor, rows: Sequence[int], rank: int
) -> dict[str, Matrices]:
    """Return the adapters of a native layer's sources, which act as its own does.

    One that `join_adapters` made is taken apart again. In any other, all sources share A.

    Args:
        layer: the layer.
        A_RI: its matrix A.
        B_OR: its matrix B.
        rows: number of outputs of each source.
        rank: rank that the parts of a joined adapter have.
    """
    parts = dict(zip(layer.sources, layer.split(B_OR, rows), strict=True))
    count, rest = divmod(len(A_RI), rank)
    if not rest and 1 < count <= len(layer.sources):
        for present in combinations(layer.sources, count):
            if _is_joined(parts, present, rank):
                return {
                    source: (A_RI[start : start + rank], parts[source][:, start : start + rank])
                    for source, start in zip(present, range(0, len(A_RI), rank), strict=True)
                }
    return {source: (A_RI, part) for source, part in parts.items()}


def _is_joined(parts: Mapping[str, torch.Tensor], present: Sequence[str], rank: int) -> bool:
    """Return whether each source has its own rank of B, and the other sources none."""
    for source, B_OR in parts.items():
        others = torch.ones(B_OR.shape[1], dtype=torch.bool)
        if source in present:
            start = present.index(source) * rank
            others[start : start + rank] = False
        if B_OR[:, others].any():
            return False
    return True
