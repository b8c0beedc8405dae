"""`qk_norm` over the kernels of csrc/qk_norm.cu, launched by the rules of `reelweave.train.kernels.cuda.launch_qk`.

For what the kernels do not take (`launch_qk.pair_launch`) both return None, and the reference computes it. It keeps the
same statistics, so one may serve the forward and the other the backward. csrc/binding_qk.cpp is the same in C++.
"""

from collections.abc import Sequence
from ctypes import Structure, c_int, c_longlong, c_void_p
from dataclasses import dataclass

import torch

from reelweave.train.kernels.cuda import launch, launch_qk
from reelweave.train.kernels.cuda.launch import Direction
from reelweave.train.kernels.cuda.launch_qk import Heads, HeadStrides, PairLaunch, QkNormArgs, QkReduceArgs
from reelweave.train.kernels.cuda.launcher import NAMES, Launcher, on_one_device, pointer

Maybes = Sequence[torch.Tensor | None]


def forward(
    launcher: Launcher,
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...] | None:
    """Run `reelweave.train.kernels.qk_norm.reference.forward` on the kernels."""
    tensors = (q_BLHd, k_BMGd, weight_q, weight_k, cos, sin)
    call = _call(launcher, "forward", (None, None), *tensors, across_heads, interleaved)
    if call is None:
        return None
    outs = [x.new_empty(x.shape) for x in (q_BLHd, k_BMGd)]
    statistics = [
        x.new_empty((*x.shape[:2], 1 if across_heads else x.shape[2]), dtype=torch.float32) for x in outs
    ]
    call.run(outs, statistics, (None, None), eps)
    return *outs, *statistics


def backward(
    launcher: Launcher,
    dq_BLHd: torch.Tensor,
    dk_BMGd: torch.Tensor,
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    rstd_q: torch.Tensor,
    rstd_k: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...] | None:
    """Run `reelweave.train.kernels.qk_norm.reference.backward` on the kernels."""
    upstream, statistics = (dq_BLHd, dk_BMGd), (rstd_q, rstd_k)
    tensors = (q_BLHd, k_BMGd, weight_q, weight_k, cos, sin)
    call = _call(launcher, "backward", upstream, *tensors, across_heads, interleaved)
    if call is None:
        return None
    outs = [x.new_empty(x.shape) for x in (q_BLHd, k_BMGd)]
    partials = [
        None if side.weight is None else rstd_q.new_empty((blocks, len(side.weight)))
        for side, blocks in zip(call.sides, call.blocks, strict=True)
    ]
    call.run(outs, [rstd.contiguous() for rstd in statistics], partials, eps)
    return *outs, *call.reduce(partials)


@dataclass(frozen=True)
class _Heads:
    """[B, L, H, d] whose channels are dense, or nothing; strides of samples, tokens and heads."""

    tensor: torch.Tensor | None
    strides: tuple[int, int, int] = (0, 0, 0)

    @property
    def aligned(self) -> bool:
        tensor = self.tensor
        return tensor is None or all(
            launch.is_aligned(tensor.data_ptr(), stride, tensor.element_size()) for stride in self.strides
        )


@dataclass(frozen=True)
class _Side:
    """The queries or the keys."""

    x: _Heads
    dy: _Heads
    weight: torch.Tensor | None

    @property
    def shape(self) -> torch.Size:
        assert self.x.tensor is not None
        return self.x.tensor.shape

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def aligned(self) -> bool:
        return self.x.aligned and self.dy.aligned and _aligned(self.weight)

    def args(self, y: torch.Tensor, rstd: torch.Tensor, partials: torch.Tensor | None) -> Structure:
        _, tokens, heads, _ = self.shape
        return Heads(
            *map(pointer, (self.x.tensor, self.dy.tensor, y, rstd, self.weight, partials)),
            *(HeadStrides(*rows.strides) for rows in (self.x, self.dy)),
            self.rows,
            tokens,
            heads,
        )


@dataclass(frozen=True)
class _Call:
    """Common arguments of one call's launches; owns the tensors that argument blocks point into."""

    launcher: Launcher
    device: torch.device
    kernel: str
    geometry: PairLaunch
    sides: tuple[_Side, _Side]
    cos: torch.Tensor | None
    sin: torch.Tensor | None
    interleaved: bool
    rows_per_block: int

    @property
    def blocks(self) -> list[int]:
        return [launch.blocks(side.rows, self.rows_per_block) for side in self.sides]

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """Dtype of the weights; None without any."""
        return next((side.weight.dtype for side in self.sides if side.weight is not None), None)

    def run(
        self, outs: Sequence[torch.Tensor], statistics: Sequence[torch.Tensor], partials: Maybes, eps: float
    ) -> None:
        of_sides = zip(self.sides, outs, statistics, partials, strict=True)
        blocks, cos, geometry = self.blocks, self.cos, self.geometry
        args = QkNormArgs(
            (Heads * 2)(*(side.args(y, rstd, sums) for side, y, rstd, sums in of_sides)),
            *map(pointer, (cos, self.sin)),
            0 if cos is None or cos.dim() == 2 else cos.stride(0),
            0 if cos is None else cos.stride(-2),
            self.rows_per_block,
            blocks[0],
            self.sides[0].shape[3],
            geometry.lanes,
            self.interleaved,
            self.weight_dtype == torch.float32,
            eps,
        )
        grid, block = (sum(blocks), 1), (geometry.threads, 1)
        self.launcher.run(self.kernel, self.device, args, grid, block, geometry.shared_bytes)

    def reduce(self, partials: Maybes) -> list[torch.Tensor]:
        """The second stage: gradients of the weights, zero for no rows; empty where there is no weight."""
        weights = [side.weight for side in self.sides]
        gradients = [None if weight is None else torch.empty_like(weight) for weight in weights]
        if self.weight_dtype is not None:
            columns = [0 if weight is None else len(weight) for weight in weights]
            args = QkReduceArgs(
                (c_void_p * 2)(*map(pointer, partials)),
                (c_void_p * 2)(*map(pointer, gradients)),
                (c_longlong * 2)(*self.blocks),
                (c_int * 2)(*columns),
            )
            kernel = f"reduce_qk_weights_{NAMES[self.weight_dtype]}"
            block = launch.reduce_block(2, max(columns), sum(self.blocks))
            grid = (2, launch.tiles(max(columns), block[0]))
            self.launcher.run(kernel, self.device, args, grid, block)
        x = self.sides[0].x.tensor
        assert x is not None
        return [x.new_empty(0) if gradient is None else gradient for gradient in gradients]


def _call(
    launcher: Launcher,
    direction: Direction,
    upstream: Maybes,
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    across_heads: bool,
    interleaved: bool,
) -> _Call | None:
    """Return the call; None if the kernels do not support it."""
    on_one_device(q_BLHd, k_BMGd, *upstream, weight_q, weight_k, cos, sin)
    device, dtype = q_BLHd.device, q_BLHd.dtype
    sides = zip((q_BLHd, k_BMGd), upstream, (weight_q, weight_k), strict=True)
    q, k = (_Side(_heads(x, dtype), _heads(dy, dtype), _dense(weight)) for x, dy, weight in sides)
    cos, sin = _dense(cos), _dense(sin)
    row_of_angles = cos is None or launch.is_aligned(0, cos.stride(-2), cos.element_size())
    geometry = launch_qk.pair_launch(
        direction,
        max(q.shape[2], k.shape[2]),
        q.shape[3],
        NAMES[dtype],
        across_heads,
        cos is not None and not interleaved,
        q.aligned and k.aligned and row_of_angles and _aligned(cos) and _aligned(sin),
        launcher.shared_limit(device),
    )
    if geometry is None:
        return None
    kernel = launch_qk.kernel_name(direction, across_heads, NAMES[dtype])
    resident = launcher.resident(kernel, device, geometry.threads, geometry.shared_bytes)
    per_block = launch_qk.rows_per_block(q.rows, k.rows, resident)
    return _Call(launcher, device, kernel, geometry, (q, k), cos, sin, interleaved, per_block)


def _heads(x_BLHd: torch.Tensor | None, dtype: torch.dtype) -> _Heads:
    """Copied only where channels lie apart, or the type is another."""
    if x_BLHd is None:
        return _Heads(None)
    x_BLHd = x_BLHd.to(dtype)
    strides = launch_qk.head_strides(x_BLHd.shape, x_BLHd.stride())
    if strides is None:
        return _heads(x_BLHd.contiguous(), dtype)
    return _Heads(x_BLHd, strides)


def _dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _aligned(tensor: torch.Tensor | None) -> bool:
    return tensor is None or launch.is_aligned(tensor.data_ptr(), 0, tensor.element_size())
