"""The operators over the kernels of csrc/: outputs, argument blocks of `reelweave.train.kernels.cuda.launch`, launches.

Who runs the kernels is a `Launcher`: the CUDA driver (`reelweave.train.kernels.cuda.driver`) or, in the
tests, the processor. `reelweave.train.kernels.cuda.host_qk` has queries and keys; csrc/binding.cpp is the
same host side in C++.
"""

from collections.abc import Callable
from ctypes import Structure
from dataclasses import dataclass
from typing import Any

import torch

from reelweave.train.kernels.cuda import host_qk, launch
from reelweave.train.kernels.cuda.launch import (
    AffineArgs,
    BackwardArgs,
    Dtype,
    Family,
    ForwardArgs,
    Groups,
    Modulation,
    ReduceArgs,
)
from reelweave.train.kernels.cuda.launcher import NAMES, Launcher, on_one_device, pointer
from reelweave.train.kernels.kernel_set import Kernels


def kernels(launcher: Launcher, serves: Callable[[torch.Tensor, str], bool], tiled: bool = False) -> Kernels:
    """The operators over these kernels; `tiled`: those of tokens by the tiled path alone."""

    def forward(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        return _forward(launcher, tiled, x, None, None, *rest)[1:]

    def backward(
        dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, ...]:
        dx, _, _, *parameter_grads = _backward(launcher, tiled, None, dy, x, None, mean, rstd, None, *rest)
        return dx, *parameter_grads

    return Kernels(
        serves=serves,
        norm_modulate=forward,
        norm_modulate_backward=backward,
        gate_norm_modulate=lambda *arguments: _forward(launcher, tiled, *arguments),
        gate_norm_modulate_backward=lambda *arguments: _backward(launcher, tiled, *arguments),
        qk_norm=lambda *arguments: host_qk.forward(launcher, *arguments),
        qk_norm_backward=lambda *arguments: host_qk.backward(launcher, *arguments),
    )


def d_tile(launcher: Launcher, serves: Callable[[torch.Tensor, str], bool]) -> Kernels:
    """The operators of tokens by the paper's D-tile reduction alone (csrc/tiled.cuh), to be measured beside ours."""
    return kernels(launcher, lambda x, numerics: x.dim() == 3 and serves(x, numerics), tiled=True)


@dataclass(frozen=True)
class _Rows:
    """Rows of D elements, `stride` elements apart; or nothing."""

    tensor: torch.Tensor | None
    stride: int

    @property
    def pointer(self) -> int | None:
        return pointer(self.tensor)

    @property
    def aligned(self) -> bool:
        tensor = self.tensor
        return tensor is None or launch.is_aligned(tensor.data_ptr(), self.stride, tensor.element_size())


@dataclass(frozen=True)
class _Call:
    """Common arguments of one call's launches; owns the tensors that argument blocks point into."""

    launcher: Launcher
    family: Family
    x: _Rows
    branch: _Rows
    vectors: tuple[_Rows, _Rows, _Rows, _Rows, _Rows]
    offsets: torch.Tensor | None
    groups: Structure
    rows: int
    dim: int

    @property
    def tokens(self) -> torch.Tensor:
        assert self.x.tensor is not None
        return self.x.tensor

    @property
    def types(self) -> tuple[Dtype, Dtype]:
        return NAMES[self.tokens.dtype], NAMES[self.modulation_dtype]

    @property
    def modulation_dtype(self) -> torch.dtype:
        scale = self.vectors[0].tensor
        assert scale is not None
        return scale.dtype

    @property
    def per_token(self) -> bool:
        return launch.is_per_token(self.rows, self.groups.count, self.offsets is not None)

    @property
    def modulation(self) -> Structure:
        return Modulation(*(v.pointer for v in self.vectors), *(v.stride for v in self.vectors[:3]))

    @property
    def aligned(self) -> bool:
        return all(rows.aligned for rows in (self.x, self.branch, *self.vectors))

    def backward_launch(self, *operands: _Rows) -> launch.KernelLaunch | None:
        aligned = self.aligned and all(rows.aligned for rows in operands)
        limit = self.launcher.shared_limit(self.tokens.device)
        clusters = self.launcher.clusters(self.tokens.device)
        return launch.backward_launch(
            self.family, self.dim, self.types[0], aligned, limit, clusters, self.per_token
        )

    def rows_per_block(
        self, kernel: str, threads: int, shared_bytes: int, across: int = 1, cluster: int = 1
    ) -> int:
        resident = self.launcher.resident(kernel, self.tokens.device, threads, shared_bytes, cluster)
        return launch.rows_per_block(self.rows, max(1, resident // across))

    def run(
        self,
        kernel: str,
        args: Structure,
        grid: tuple[int, int],
        block: tuple[int, int],
        shared_bytes: int = 0,
    ) -> None:
        self.launcher.run(kernel, self.tokens.device, args, grid, block, shared_bytes)


def _call(
    launcher: Launcher,
    x_BLD: torch.Tensor,
    branch_BLD: torch.Tensor | None,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor | None,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
) -> _Call:
    on_one_device(x_BLD, branch_BLD, gate, scale, shift, weight_D, bias_D, cu_seqlens)
    dim = x_BLD.shape[-1]
    rows, count = x_BLD.numel() // dim, scale.numel() // dim
    # The kernels take modulation, weight and bias of one type.
    affine = [parameter.dtype for parameter in (weight_D, bias_D) if parameter is not None]
    dtype = scale.dtype if set(affine) <= {scale.dtype} else torch.float32
    offsets = None if cu_seqlens is None else cu_seqlens.to(torch.int32).contiguous()
    return _Call(
        launcher,
        "layer_norm_modulate" if branch_BLD is None else "gate_residual_norm_modulate",
        _rows(x_BLD, x_BLD.dtype),
        _rows(branch_BLD, x_BLD.dtype),
        (
            _rows(scale, dtype),
            _rows(shift, dtype),
            _rows(gate, dtype),
            _rows(weight_D, dtype),
            _rows(bias_D, dtype),
        ),
        offsets,
        Groups(pointer(offsets), rows // count, count, rows),
        rows,
        dim,
    )


def _forward(
    launcher: Launcher,
    tiled: bool,
    x_BLD: torch.Tensor,
    branch_BLD: torch.Tensor | None,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...]:
    """H (x itself without a gate), out, mean (empty for the RMS norm) and rstd."""
    call = _call(launcher, x_BLD, branch_BLD, gate, scale, shift, weight_D, bias_D, cu_seqlens)
    y_BLD = x_BLD.new_empty(x_BLD.shape)
    h_BLD = None if branch_BLD is None else torch.empty_like(y_BLD)
    rstd_BL = x_BLD.new_empty(x_BLD.shape[:-1], dtype=torch.float32)
    mean_BL = rstd_BL.new_empty(0) if rms else torch.empty_like(rstd_BL)
    geometry = None if tiled else launch.forward_launch(call.family, call.dim, call.types[0], call.aligned)
    if geometry is None:
        kernel = launch.tiled_name(call.family, "forward", *call.types)
        threads, rows = launch.tiled_threads(call.dim), 1
    else:
        kernel = launch.forward_name(call.family, *call.types, geometry)
        threads, rows = geometry.threads, geometry.rows
    args = ForwardArgs(
        call.x.pointer,
        call.branch.pointer,
        *map(pointer, (h_BLD, y_BLD, mean_BL, rstd_BL)),
        call.modulation,
        call.groups,
        call.rows,
        call.x.stride,
        call.branch.stride,
        call.dim,
        rms,
        eps,
    )
    call.run(kernel, args, (launch.blocks(call.rows, rows), 1), (threads, 1))
    return x_BLD if h_BLD is None else h_BLD, y_BLD, mean_BL, rstd_BL


def _backward(
    launcher: Launcher,
    tiled: bool,
    dh_BLD: torch.Tensor | None,
    dy_BLD: torch.Tensor,
    x_BLD: torch.Tensor,
    branch_BLD: torch.Tensor | None,
    mean_BL: torch.Tensor,
    rstd_BL: torch.Tensor,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    _eps: float,
    rms: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...]:
    """Gradients of x (or residual), branch, gate, scale, shift, weight and bias; empty where there is none."""
    call = _call(launcher, x_BLD, branch_BLD, gate, scale, None, weight_D, bias_D, cu_seqlens)
    dy, dh = (_rows(tensor, x_BLD.dtype) for tensor in (dy_BLD, dh_BLD))
    mean_BL, rstd_BL = mean_BL.contiguous(), rstd_BL.contiguous()
    dx_BLD = x_BLD.new_empty(x_BLD.shape)
    dbranch_BLD = None if branch_BLD is None else torch.empty_like(dx_BLD)
    dscale, dshift = (scale.new_empty(scale.shape, dtype=call.modulation_dtype) for _ in range(2))
    dgate = None if gate is None else torch.empty_like(dscale)
    geometry = None if tiled else call.backward_launch(dy, dh)
    if geometry is None:
        kernel = launch.tiled_name(call.family, "columns", *call.types, call.per_token)
        threads, shared, cluster, teams = launch.tiled_threads(call.dim), 0, 1, 1
        across = launch.tiles(call.dim, threads)
    else:
        kernel = launch.backward_name(call.family, *call.types, geometry, call.per_token)
        threads, shared, across = geometry.threads, geometry.shared_bytes, 1
        cluster, teams = geometry.cluster, geometry.teams
    per_block = call.rows_per_block(kernel, threads * teams, shared, across, cluster)
    affine = weight_D is not None or bias_D is not None
    partials = row_sums = None
    if affine or not call.per_token:
        slots = launch.slots(call.rows, per_block, 1 if call.per_token else call.groups.count)
        partials = rstd_BL.new_empty((slots, 2 if dgate is None or call.per_token else 3, call.dim))
    if geometry is None:
        row_sums = rstd_BL.new_empty((call.rows, 2))
    args = BackwardArgs(
        *(rows.pointer for rows in (call.x, dy, call.branch, dh)),
        *map(pointer, (dx_BLD, dbranch_BLD, dscale, dshift, dgate, mean_BL, rstd_BL, partials, row_sums)),
        call.modulation,
        call.groups,
        call.rows,
        per_block,
        *(rows.stride for rows in (call.x, dy, call.branch, dh)),
        call.dim,
        rms,
    )
    if geometry is None:
        rows_kernel = launch.tiled_name(call.family, "rows", *call.types)
        call.run(rows_kernel, args, (call.rows, 1), (threads, 1))
    call.run(kernel, args, (cluster * launch.blocks(call.rows, per_block), across), (threads, teams), shared)
    dweight_D = dbias_D = None
    if partials is not None:
        dweight_D, dbias_D = _reduce(call, partials, per_block, affine, dscale, dshift, dgate)
    forward_inputs = (x_BLD, branch_BLD, gate, scale, scale, weight_D, bias_D)
    grads = (dx_BLD, dbranch_BLD, dgate, dscale, dshift, dweight_D, dbias_D)
    return tuple(
        x_BLD.new_empty(0) if like is None or gradient is None else gradient.to(like.dtype)
        for like, gradient in zip(forward_inputs, grads, strict=True)
    )


def _reduce(
    call: _Call,
    partials: torch.Tensor,
    per_block: int,
    affine: bool,
    dscale: torch.Tensor,
    dshift: torch.Tensor,
    dgate: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The second stage: fills dscale, dshift and dgate, unless backward did, by token; gives dweight and dbias."""
    *_, weight, bias = call.vectors
    _, m = call.types
    dweight_D = dbias_D = sums = None
    if affine:
        dweight_D, dbias_D = (dscale.new_empty(call.dim) for _ in range(2))
    outputs: tuple[torch.Tensor | None, ...]
    if call.per_token:
        groups, outputs = Groups(None, call.rows, 1, call.rows), (dweight_D, dbias_D, None, None, None)
    else:
        groups, outputs = call.groups, (dscale, dshift, dgate, weight.tensor, bias.tensor)
        sums = partials.new_empty((groups.count, 2, call.dim)) if affine else None
    args = ReduceArgs(
        *map(pointer, (partials, sums, *outputs)),
        groups,
        call.rows,
        per_block,
        call.dim,
        partials.shape[1],
    )
    block = launch.reduce_block(groups.count, call.dim, len(partials))
    call.run(f"reduce_{m}", args, (groups.count, launch.tiles(call.dim, block[0])), block)
    if sums is not None:
        scale, *_ = call.vectors
        affine_args = AffineArgs(
            *map(pointer, (sums, scale.tensor, dweight_D, dbias_D)), scale.stride, groups.count, call.dim
        )
        threads = launch.AFFINE_THREADS
        call.run(f"reduce_affine_{m}", affine_args, (launch.tiles(call.dim, threads), 1), (threads, 1))
    return dweight_D, dbias_D


def _rows(tensor: torch.Tensor | None, dtype: torch.dtype) -> _Rows:
    """The rows of [..., D]; copied only where no one stride leads from row to row, or the type is another."""
    if tensor is None:
        return _Rows(None, 0)
    tensor = tensor.to(dtype)
    stride = launch.row_stride(tensor.shape, tensor.stride())
    return _Rows(tensor.contiguous(), tensor.shape[-1]) if stride is None else _Rows(tensor, stride)
