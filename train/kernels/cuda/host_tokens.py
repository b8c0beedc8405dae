"""Norm and modulation of tokens over the kernels of csrc/: calls, plans, launches.

A model calls these operators hundreds of times a step with tensors of few layouts. What follows from a layout is a
plan, made once; a call looks its plan up, allocates outputs, and fills in addresses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.cuda.launch import (
    VECTOR_BYTES,
    AffineArgs,
    BackwardArgs,
    Family,
    ForwardArgs,
    Groups,
    Modulation,
    ReduceArgs,
)
from reelweave.train.kernels.cuda.launcher import (
    NAMES,
    Launch,
    Launcher,
    Plans,
    Run,
    addresses_and_layouts,
    empty,
    on_one_device,
    template,
)
from reelweave.train.kernels.shared.rows import check

Maybe = torch.Tensor | None
_Tensors = Sequence[Any]
"""X (or residual), branch, gate, scale, shift, weight, bias, cu_seqlens; in the backward then dy and dh."""
_OFFSETS = 7


class _ForwardPlan(NamedTuple):
    """Forward of one layout; `mean` and `rstd` are templates."""

    run: Run
    mean: torch.Tensor
    rstd: torch.Tensor


class _BackwardPlan(NamedTuple):
    """Prepared launches of the backward of one layout.

    Attributes:
        run: runs the kernels of the backward, then those of the second stage.
        num_first: kernels of the backward; two on the tiled path.
        per_token: True if every row has its own modulation.
        partials: template of the sums of blocks; None without a second stage.
        row_sums: template of the tiled path's scratch; None elsewhere.
        sums: template of the sums for weight and bias; None where no kernel needs them.
        parameter: template of the gradient of weight or bias; None without them.
        nothing: empty gradients of branch, gate, weight and bias.
    """

    run: Run
    num_first: int
    per_token: bool
    partials: Maybe
    row_sums: Maybe
    sums: Maybe
    parameter: Maybe
    nothing: list[torch.Tensor]


class TokenHost:
    """Norm and modulation of tokens, with and without the gate."""

    def __init__(self, launcher: Launcher, tiled: bool = False) -> None:
        self._launcher, self._tiled = launcher, tiled
        self._forwards, self._backwards = Plans(), Plans()

    def operators(self) -> dict[str, Callable[..., Any]]:
        """Return the operators by their names."""
        return {
            "norm_modulate": self.norm_forward,
            "norm_modulate_backward": self.norm_backward,
            "gate_norm_modulate": self.forward,
            "gate_norm_modulate_backward": self.backward,
        }

    def norm_forward(
        self,
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        weight: Maybe,
        bias: Maybe,
        cu_seqlens: Maybe,
        eps: float,
        rms: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...]:
        """Out, mean and rstd, without a gate."""
        outputs = self.forward(x, None, None, scale, shift, weight, bias, cu_seqlens, eps, rms, numerics)
        return outputs[1:]

    def norm_backward(
        self,
        dy: torch.Tensor,
        x: torch.Tensor,
        mean: torch.Tensor,
        rstd: torch.Tensor,
        scale: torch.Tensor,
        weight: Maybe,
        bias: Maybe,
        cu_seqlens: Maybe,
        eps: float,
        rms: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of x, scale, shift, weight and bias, without a gate."""
        gradients = self.backward(
            None, dy, x, None, mean, rstd, None, scale, weight, bias, cu_seqlens, eps, rms, numerics
        )
        return gradients[0], *gradients[3:]

    def forward(
        self,
        x: torch.Tensor,
        branch: Maybe,
        gate: Maybe,
        scale: torch.Tensor,
        shift: Maybe,
        weight: Maybe,
        bias: Maybe,
        cu_seqlens: Maybe,
        eps: float,
        rms: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...]:
        """H (x itself without a gate), out, mean (empty for the RMS norm) and rstd."""
        tensors = (x, branch, gate, scale, shift, weight, bias, cu_seqlens)
        addresses, layouts = addresses_and_layouts(tensors)
        x_at, branch_at, gate_at, scale_at, shift_at, weight_at, bias_at, offsets_at = addresses
        aligned = (x_at | branch_at | gate_at | scale_at | shift_at | weight_at | bias_at) % VECTOR_BYTES == 0
        key = layouts, aligned, eps, rms
        try:
            plan = self._forwards[key]
        except KeyError:
            plan = self._forwards.add(key, self._plan_forward(tensors, aligned, eps, rms, numerics))
        if plan is None:
            arguments: tuple[Any, ...] = (*_fitting(tensors), eps, rms, numerics)
            return self.forward(*arguments)
        y, mean, rstd = empty(x), empty(plan.mean), empty(plan.rstd)
        h = None if branch is None else empty(x)
        h_at = 0 if h is None else h.data_ptr()
        outputs = h_at, y.data_ptr(), mean.data_ptr(), rstd.data_ptr()
        offsets = (offsets_at,) if offsets_at else ()
        vectors = scale_at, shift_at, gate_at, weight_at, bias_at
        plan.run(((x_at, branch_at, *outputs, *vectors), offsets))
        return x if h is None else h, y, mean, rstd

    def backward(
        self,
        dh: Maybe,
        dy: torch.Tensor,
        x: torch.Tensor,
        branch: Maybe,
        mean: torch.Tensor,
        rstd: torch.Tensor,
        gate: Maybe,
        scale: torch.Tensor,
        weight: Maybe,
        bias: Maybe,
        cu_seqlens: Maybe,
        eps: float,
        rms: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of x (or residual), branch, gate, scale, shift, weight and bias; empty where there is none."""
        tensors = (x, branch, gate, scale, None, weight, bias, cu_seqlens, dy, dh)
        addresses, layouts = addresses_and_layouts(tensors)
        x_at, branch_at, gate_at, scale_at, _, weight_at, bias_at, offsets_at, dy_at, dh_at = addresses
        all_bits = x_at | branch_at | gate_at | scale_at | weight_at | bias_at | dy_at | dh_at
        aligned = all_bits % VECTOR_BYTES == 0
        # Addresses change at every call, layouts hardly ever: plans are kept by layout.
        key = layouts, aligned, rms
        try:
            plan = self._backwards[key]
        except KeyError:
            plan = self._backwards.add(key, self._plan_backward(tensors, aligned, rms))
        if plan is None:
            return self._backward_of_fitting(tensors, mean, rstd, eps, rms, numerics)
        mean, rstd = mean.contiguous(), rstd.contiguous()
        dx, dscale, dshift = empty(x), empty(scale), empty(scale)
        dx_at, dscale_at, dshift_at = dx.data_ptr(), dscale.data_ptr(), dshift.data_ptr()
        dbranch, dgate, dweight, dbias = plan.nothing
        dbranch_at = dgate_at = dweight_at = dbias_at = partials_at = row_sums_at = sums_at = 0
        if branch is not None:
            dbranch, dgate = empty(x), empty(scale)
            dbranch_at, dgate_at = dbranch.data_ptr(), dgate.data_ptr()
        if plan.partials is not None:
            partials = empty(plan.partials)
            partials_at = partials.data_ptr()
        if plan.parameter is not None:
            dweight, dbias = empty(plan.parameter), empty(plan.parameter)
            dweight_at, dbias_at = dweight.data_ptr(), dbias.data_ptr()
        if plan.sums is not None:
            sums = empty(plan.sums)
            sums_at = sums.data_ptr()
        if plan.row_sums is not None:
            row_sums = empty(plan.row_sums)
            row_sums_at = row_sums.data_ptr()
        offsets = (offsets_at,) if offsets_at else ()
        first = (
            *(x_at, dy_at, branch_at, dh_at, dx_at, dbranch_at, dscale_at, dshift_at, dgate_at),
            *(mean.data_ptr(), rstd.data_ptr(), partials_at, row_sums_at),
            *(scale_at, 0, gate_at, weight_at, bias_at),
        )
        if plan.per_token:
            second = (partials_at, 0, dweight_at, dbias_at, 0, 0, 0, 0)
        else:
            second = (partials_at, sums_at, dscale_at, dshift_at, dgate_at, weight_at, bias_at, offsets_at)
        pointers = (first, offsets, second, (sums_at, scale_at, dweight_at, dbias_at))
        plan.run(pointers if plan.num_first == 1 else (first, offsets, *pointers))
        if weight is None:
            dweight = plan.nothing[2]
        if bias is None:
            dbias = plan.nothing[3]
        return dx, dbranch, dgate, dscale, dshift, dweight, dbias

    def _backward_of_fitting(
        self, tensors: _Tensors, mean: torch.Tensor, rstd: torch.Tensor, eps: float, rms: bool, numerics: str
    ) -> tuple[torch.Tensor, ...]:
        x, branch, gate, scale, _, weight, bias, cu_seqlens, dy, dh = _fitting(tensors)
        grads = self.backward(
            *(dh, dy, x, branch, mean, rstd, gate, scale, weight, bias, cu_seqlens, eps, rms, numerics)
        )
        inputs = (*tensors[:4], tensors[3], *tensors[5:7])
        return tuple(
            gradient if like is None else gradient.to(like.dtype)
            for gradient, like in zip(grads, inputs, strict=True)
        )

    def _plan_forward(
        self, tensors: _Tensors, aligned: bool, eps: float, rms: bool, numerics: str
    ) -> _ForwardPlan | None:
        """Return the plan of a layout, which is checked; None if a tensor must be copied first."""
        arguments: tuple[Any, ...] = (*tensors, numerics)
        check(*arguments)
        if not _fits(tensors):
            return None
        shape = _Shape(tensors)
        geometry = None
        if not self._tiled:
            geometry = launch.forward_launch(
                shape.family, shape.dim, shape.types[0], aligned and shape.aligned
            )
        if geometry is None:
            kernel = launch.tiled_name(shape.family, "forward", *shape.types)
            threads, rows_of_block = launch.tiled_threads(shape.dim), 1
        else:
            kernel = launch.forward_name(shape.family, *shape.types, geometry)
            threads, rows_of_block = geometry.threads, geometry.rows
        args = ForwardArgs(**shape.common, rms=rms, eps=eps)
        grid = launch.blocks(shape.rows, rows_of_block), 1
        run = self._launcher.prepare(shape.x.device, [Launch(kernel, args, grid, (threads, 1))])
        rstd = template(shape.x, *shape.x.shape[:-1])
        return _ForwardPlan(run, template(shape.x, 0) if rms else rstd, rstd)

    def _plan_backward(self, tensors: _Tensors, aligned: bool, rms: bool) -> _BackwardPlan | None:
        """Return the plan; None if a tensor must be copied first."""
        if not _fits(tensors):
            return None
        shape, launcher = _Shape(tensors), self._launcher
        rows, dim, x = shape.rows, shape.dim, shape.x
        # Whole rows in shared memory where they fit; else tiles of columns, and a launch for the rows before.
        geometry = None
        if not self._tiled:
            limit, clusters = launcher.shared_limit(x.device), launcher.clusters(x.device)
            geometry = launch.backward_launch(
                shape.family, dim, shape.types[0], aligned and shape.aligned, limit, clusters, shape.per_token
            )
        if geometry is None:
            kernel = launch.tiled_name(shape.family, "columns", *shape.types, shape.per_token)
            threads, shared, cluster, teams = launch.tiled_threads(dim), 0, 1, 1
            across = launch.tiles(dim, threads)
        else:
            kernel = launch.backward_name(shape.family, *shape.types, geometry, shape.per_token)
            threads, shared, across = geometry.threads, geometry.shared_bytes, 1
            cluster, teams = geometry.cluster, geometry.teams
        # As many blocks as are resident at once, each of a run of rows, so that few partial sums are left.
        resident = launcher.resident(kernel, x.device, threads * teams, shared, cluster)
        per_block = launch.rows_per_block(rows, max(1, resident // across))
        upstream = {"dy_stride": shape.strides[8], "dh_stride": shape.strides[9]}
        args = BackwardArgs(**shape.common, **upstream, rows_per_cta=per_block, rms=rms)
        grid = cluster * launch.blocks(rows, per_block), across
        launches = [Launch(kernel, args, grid, (threads, teams), shared)]
        if geometry is None:
            rows_kernel = launch.tiled_name(shape.family, "rows", *shape.types)
            launches = [Launch(rows_kernel, args, (rows, 1), (threads, 1)), *launches]
        num_first = len(launches)
        partials = sums = None
        if shape.affine or not shape.per_token:
            slots = launch.slots(rows, per_block, 1 if shape.per_token else shape.groups.count)
            partials = template(x, slots, 3 if shape.gated and not shape.per_token else 2, dim)
            launches += _second_stage(shape, per_block, partials)
            if shape.affine and not shape.per_token:
                sums = template(x, shape.groups.count, 2, dim)
        return _BackwardPlan(
            launcher.prepare(x.device, launches),
            num_first,
            shape.per_token,
            partials,
            template(x, rows, 2) if geometry is None else None,
            sums,
            template(shape.scale, dim, dtype=shape.scale.dtype) if shape.affine else None,
            [x.new_empty(0) for _ in range(4)],
        )


class _Shape:
    """Shape, dtypes and strides of tensors, which their launches depend on."""

    def __init__(self, tensors: _Tensors) -> None:
        x, branch, _, scale, _, weight, bias, cu_seqlens, *_ = tensors
        self.x, self.scale = x, scale
        self.family: Family = "layer_norm_modulate" if branch is None else "gate_residual_norm_modulate"
        self.gated, self.affine = branch is not None, weight is not None or bias is not None
        # Rows are tokens; groups of them share one scale, shift and gate.
        self.types = NAMES[x.dtype], NAMES[scale.dtype]
        self.dim = x.shape[-1]
        self.rows, count = x.numel() // self.dim, scale.numel() // self.dim
        self.groups = Groups(None, self.rows // count, count, self.rows)
        self.per_token = launch.is_per_token(self.rows, count, cu_seqlens is not None)
        self.strides = [
            0 if tensor is None else launch.row_stride(tensor.shape, tensor.stride()) or 0
            for tensor in tensors
        ]
        modulation = Modulation(
            scale_stride=self.strides[3], shift_stride=self.strides[4], gate_stride=self.strides[2]
        )
        self.common = {
            "modulation": modulation,
            "groups": self.groups,
            "rows": self.rows,
            "dim": self.dim,
            "x_stride": self.strides[0],
            "branch_stride": self.strides[1],
        }
        # By strides alone; addresses are looked at in each call.
        self.aligned = all(
            tensor is None or launch.is_aligned(0, stride, tensor.element_size())
            for index, (tensor, stride) in enumerate(zip(tensors, self.strides, strict=True))
            if index != _OFFSETS
        )


def _second_stage(shape: _Shape, per_block: int, partials: torch.Tensor) -> list[Launch]:
    """Return the launches that fill dscale, dshift and dgate, unless backward did, by token; dweight and dbias."""
    slots, parts, dim = partials.shape
    groups = Groups(None, shape.rows, 1, shape.rows) if shape.per_token else shape.groups
    args = ReduceArgs(groups=groups, rows=shape.rows, rows_per_cta=per_block, dim=dim, parts=parts)
    block = launch.reduce_block(groups.count, dim, slots)
    name = shape.types[1]
    launches = [Launch(f"reduce_{name}", args, (groups.count, launch.tiles(dim, block[0])), block)]
    if shape.affine and not shape.per_token:
        affine_args = AffineArgs(scale_stride=shape.strides[3], groups=groups.count, dim=dim)
        threads = launch.AFFINE_THREADS
        grid = launch.tiles(dim, threads), 1
        launches.append(Launch(f"reduce_affine_{name}", affine_args, grid, (threads, 1)))
    return launches


def _fits(tensors: _Tensors) -> bool:
    """Return True if the kernels read the tensors as they are."""
    on_one_device(*(tensor for tensor in tensors if tensor is not None))
    return all(tensor is fitting for tensor, fitting in zip(tensors, _fitting(tensors), strict=True))


def _fitting(tensors: _Tensors) -> tuple[Any, ...]:
    """Return the tensors; copies where no one stride leads from row to row, or types differ.

    The kernels take modulation, weight and bias of one type.
    """
    x, branch, gate, scale, shift, weight, bias, cu_seqlens, *upstream = tensors
    affine = {parameter.dtype for parameter in (weight, bias) if parameter is not None}
    dtype = scale.dtype if affine <= {scale.dtype} else torch.float32
    return (
        _in_rows(x, x.dtype),
        _in_rows(branch, x.dtype),
        *(_in_rows(vector, dtype) for vector in (gate, scale, shift, weight, bias)),
        None if cu_seqlens is None else cu_seqlens.to(torch.int32).contiguous(),
        *(_in_rows(gradient, x.dtype) for gradient in upstream),
    )


def _in_rows(tensor: Maybe, dtype: torch.dtype) -> Maybe:
    if tensor is None:
        return None
    tensor = tensor.to(dtype)
    stride = launch.row_stride(tensor.shape, tensor.stride())
    return tensor.contiguous() if stride is None else tensor
