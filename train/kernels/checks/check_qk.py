"""Check cases of `reelweave.train.kernels.checks.check` for queries and keys."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch

from reelweave.train.kernels.checks.accuracy import EPS, TYPES, double, units
from reelweave.train.kernels.eager import EAGER, with_references
from reelweave.train.kernels.kernel_set import Kernels
from reelweave.train.kernels.qk_norm import reference as qk_norm

Turn = Literal["none", "half", "interleaved"]
PairLayout = Literal["packed", "whole", "turned", "unaligned"]
TURNS: tuple[Turn, ...] = ("none", "half", "interleaved")
PAIR_LAYOUTS: tuple[PairLayout, ...] = ("packed", "whole", "turned", "unaligned")
PairShape = tuple[int, int, int, int, int]
SHAPES: tuple[PairShape, ...] = (
    (1, 1, 1, 1, 64),
    (1023, 1023, 40, 40, 128),
    (199, 37, 12, 12, 128),
    (333, 333, 24, 8, 64),
    (61, 61, 5, 7, 80),
    (37, 37, 16, 16, 256),
    (33, 0, 4, 4, 128),
    (9, 9, 3, 3, 20),
    (5, 5, 65, 65, 128),
)
"""L, M, H, G and d: shapes of models, odd rows, keys of another text, no keys, and two that no kernel supports."""


@dataclass(frozen=True)
class PairCase:
    """One call of the operator and of its gradient, for two samples.

    Attributes:
        shape: L, M, H, G and d.
        x: dtype of queries and keys.
        weight: dtype of the weights; None: no weights.
        across: True if the heads of a token are normed together.
        turn: kind of rotation.
        per_sample: True for angles per sample.
        layout: memory layout of queries and keys; ``packed`` in a qkv tensor, ``turned`` head by head.
    """

    shape: PairShape
    x: torch.dtype
    weight: torch.dtype | None
    across: bool
    turn: Turn = "none"
    per_sample: bool = False
    layout: PairLayout = "packed"

    def __str__(self) -> str:
        L, M, H, G, d = self.shape
        weight = "" if self.weight is None else f" by {self.weight}"
        kind = "across heads" if self.across else "per head"
        turn = {"none": "not rotated", "half": "rotated by halves"}.get(self.turn, "rotated by pairs")
        types = f"{self.x}{weight}".replace("torch.", "")
        return f"qk_norm of {L} x {H} x {d} and {M} x {G} x {d} {types}, {kind}, {turn}, {self.layout}"


def cases(shapes: Iterable[PairShape] = SHAPES) -> Iterator[PairCase]:
    """Yield every kind of norm, rotation and dtype in every shape, and other choices in rotation."""
    choices = list(product((True, False), (False, True), PAIR_LAYOUTS))
    for shape_index, shape in enumerate(shapes):
        combinations = product((False, True), TURNS, TYPES)
        for index, (across, turn, (x, weight)) in enumerate(combinations, start=shape_index):
            # Same rotation of choices as in `reelweave.train.kernels.checks.check.cases`.
            weighted, per_sample, layout = choices[(7 * index + shape_index) % 16]
            # One rotation cannot serve queries and keys of different lengths.
            rotation = turn if shape[0] == shape[1] else "none"
            yield PairCase(shape, x, weight if weighted else None, across, rotation, per_sample, layout)


def worst(kernels: Kernels, device: torch.device, case: PairCase) -> float:
    """Return the largest error as `reelweave.train.kernels.checks.check.worst`."""
    draw = torch.Generator().manual_seed(sum(case.shape))

    def normal(*shape: int, dtype: torch.dtype = case.x) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    L, M, H, G, d = case.shape
    q, k = (_lay_out(normal(2, n, 3, heads, d + 8) + 1, d, case.layout) for n, heads in ((L, H), (M, G)))
    weights = [
        None if case.weight is None else normal(heads * d if case.across else d, dtype=case.weight)
        for heads in (H, G)
    ]
    angles = normal(*([2] if case.per_sample else []), L, d // 2, dtype=torch.float32)
    rotation = (None, None) if case.turn == "none" else (angles.cos(), angles.sin())
    # Head by head, like gradients from attention.
    upstream = tuple(normal(2, heads, n, d).transpose(1, 2) for n, heads in ((L, H), (M, G)))
    how = (*weights, *rotation, EPS, case.across, case.turn == "interleaved", "fp32")
    kernels = with_references(kernels) if kernels.serves(q, "fp32") else EAGER
    *outs, rstd_q, rstd_k = kernels.qk_norm(q, k, *how)
    *exact, exact_rstd_q, exact_rstd_k = qk_norm.forward(*double((q, k, *how)))
    grads, again = (kernels.qk_norm_backward(*upstream, q, k, rstd_q, rstd_k, *how) for _ in range(2))
    if not all(map(torch.equal, grads, again)):
        return float("inf")
    wide = double((*upstream, q, k, exact_rstd_q, exact_rstd_k, *how))
    exact += qk_norm.backward(*wide)
    return max(units(*pair) for pair in zip((*outs, *grads), exact, strict=True))


def _lay_out(x_BL3Hd: torch.Tensor, d: int, layout: PairLayout) -> torch.Tensor:
    """Return one third and d of its columns in a memory layout."""
    if layout == "packed":
        return x_BL3Hd[..., :d].contiguous()[:, :, 1]
    x_BLHd = x_BL3Hd[:, :, 1]
    if layout == "unaligned":
        return x_BLHd[..., 1 : d + 1]
    if layout == "turned":
        return x_BLHd[..., :d].transpose(1, 2).contiguous().transpose(1, 2)
    return x_BLHd[..., :d].contiguous()
