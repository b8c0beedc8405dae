"""The kernels of csrc/qk_norm.cu run on the processor (emulator.h), against tensors of torch."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from reelweave.train.kernels.cuda import host_qk, launch
from reelweave.train.kernels.cuda.host_qk import Heads, HeadStrides, QkNormArgs, QkReduceArgs
from tests.train.kernels.emulated import NAME, pointer, run


@dataclass(frozen=True)
class Pair:
    """What the operator takes, [B, L, H, d] each."""

    q_BLHd: torch.Tensor
    k_BMGd: torch.Tensor
    weight_q: torch.Tensor | None
    weight_k: torch.Tensor | None
    rotation: tuple[torch.Tensor, torch.Tensor] | None
    across_heads: bool
    interleaved: bool

    def sides(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        return [(self.q_BLHd, self.weight_q), (self.k_BMGd, self.weight_k)]


@dataclass(frozen=True)
class EmulatedPair:
    """The operator over emulated kernels; `resident` sets the blocks."""

    kernels: ctypes.CDLL
    resident: int = 5
    seed: int = 0

    def forward(self, pair: Pair) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """q and k, and their statistics."""
        outs = [nan_like(x) for x, _ in pair.sides()]
        statistics = [
            torch.full((*x.shape[:2], 1 if pair.across_heads else x.shape[2]), torch.nan)
            for x, _ in pair.sides()
        ]
        nothing: list[Any] = [None, None]
        self.launch("forward", pair, outs, statistics, nothing, nothing)
        return outs, statistics

    def backward(
        self, pair: Pair, upstream: list[torch.Tensor], statistics: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Gradients of q and k, and of their weights."""
        columns = [x.shape[3] * (x.shape[2] if pair.across_heads else 1) for x, _ in pair.sides()]
        blocks = self.blocks(pair)
        partials = [torch.full((n, width), torch.nan) for n, width in zip(blocks, columns, strict=True)]
        given = [None if weight is None else nan_like(weight) for _, weight in pair.sides()]
        outs = [nan_like(x) for x, _ in pair.sides()]
        self.launch("backward", pair, outs, statistics, upstream, partials)
        weight = next((weight for weight in given if weight is not None), None)
        if weight is not None:
            args = QkReduceArgs(
                (ctypes.c_void_p * 2)(*map(pointer, partials)),
                (ctypes.c_void_p * 2)(*map(pointer, given)),
                (ctypes.c_longlong * 2)(*blocks),
                (ctypes.c_int * 2)(*columns),
            )
            name, block = (
                f"qk_norm_weights_{NAME[weight.dtype]}",
                launch.reduce_block(2, max(columns), sum(blocks)),
            )
            run(self.kernels, name, args, (2, -(-max(columns) // block[0])), block, seed=self.seed)
        return outs, given

    def blocks(self, pair: Pair) -> list[int]:
        rows = [x.shape[0] * x.shape[1] for x, _ in pair.sides()]
        per_block = host_qk.rows_per_block(rows[0], rows[1], self.resident)
        return [launch.blocks(n, per_block) for n in rows]

    def launch(
        self,
        direction: launch.Direction,
        pair: Pair,
        outs: list[torch.Tensor],
        statistics: list[torch.Tensor],
        upstream: list[torch.Tensor | None],
        partials: list[torch.Tensor | None],
    ) -> None:
        x, width = NAME[pair.q_BLHd.dtype], pair.q_BLHd.shape[3]
        heads = max(side.shape[2] for side, _ in pair.sides())
        turns_halves = pair.rotation is not None and not pair.interleaved
        geometry = host_qk.pair_launch(
            direction, heads, width, x, pair.across_heads, turns_halves, True, 227 << 10
        )
        assert geometry is not None
        sides = [
            Heads(
                *map(pointer, (side, dy, y, rstd, weight, sums)),
                HeadStrides(*side.stride()[:3]),
                HeadStrides(*(side if dy is None else dy).stride()[:3]),
                side.shape[0] * side.shape[1],
                side.shape[1],
                side.shape[2],
            )
            for (side, weight), dy, y, rstd, sums in zip(
                pair.sides(), upstream, outs, statistics, partials, strict=True
            )
        ]
        cos, sin = pair.rotation or (None, None)
        rows = [side.rows for side in sides]
        blocks = self.blocks(pair)
        args = QkNormArgs(
            (Heads * 2)(*sides),
            *map(pointer, (cos, sin)),
            0 if cos is None or cos.dim() == 2 else cos.stride(0),
            0 if cos is None else cos.stride(-2),
            host_qk.rows_per_block(rows[0], rows[1], self.resident),
            blocks[0],
            width,
            geometry.lanes,
            pair.interleaved,
            any(weight is not None and weight.dtype == torch.float32 for _, weight in pair.sides()),
            1e-6,
        )
        name = host_qk.kernel_name(direction, pair.across_heads, x)
        grid, block = (sum(blocks), 1), (geometry.threads, 1)
        run(self.kernels, name, args, grid, block, geometry.shared_bytes, self.seed)


def nan_like(x: torch.Tensor) -> torch.Tensor:
    return torch.full(x.shape, torch.nan, dtype=x.dtype)
