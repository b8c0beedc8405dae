"""`qk_norm` over the kernels of csrc/qk_norm.cu: calls, plans, and the rules of launches.

One launch serves queries and keys: the first blocks walk the queries, the others the keys, `rows_per_block` rows each.
For what the kernels do not take (`pair_launch`) both passes return None, and the reference computes it. It keeps the
same statistics, so one may serve the forward and the other the backward.
"""

from collections.abc import Callable, Sequence
from ctypes import Structure, c_int, c_longlong
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.cuda.launch import DTYPE_BYTES, VECTOR_BYTES, WARP, Direction, Dtype
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
from reelweave.train.kernels.cuda.rules import constant, struct
from reelweave.train.kernels.shared.heads import check

PAIR_ELEMENTS = constant("PairElements")

HeadStrides, Heads = struct("HeadStrides"), struct("Heads")
QkNormArgs, QkReduceArgs = struct("QkNormArgs"), struct("QkReduceArgs")

Maybe = torch.Tensor | None
_Tensors = Sequence[Any]
"""Queries, keys, their weights, cosines and sines; in the backward then the gradients of queries and keys."""


@dataclass(frozen=True)
class PairLaunch:
    """One launch: `threads` a block, `lanes` threads for a pair of vectors each make a head.

    `shared_bytes` is dynamic shared memory: above 48 KB ask for it first.
    """

    threads: int
    lanes: int
    shared_bytes: int


class _Plan(NamedTuple):
    """One pass over pairs of one layout.

    Attributes:
        run: runs the kernel, then the second stage of the weights' gradients; None where no kernel takes the pair.
        copies: True if tensors are copied first.
        scratch: templates of both sides, of statistics in the forward, of partial sums in the backward (None without
            a weight).
        nothing: empty gradients of the weights.
    """

    run: Run | None
    copies: bool = False
    scratch: tuple[Maybe, Maybe] = (None, None)
    nothing: tuple[torch.Tensor, ...] = ()


class HeadHost:
    """Norm and rotation of queries and keys."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._forwards, self._backwards = Plans(), Plans()

    def operators(self) -> dict[str, Callable[..., Any]]:
        """Return the operators by their names."""
        return {"qk_norm": self.forward, "qk_norm_backward": self.backward}

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        weight_q: Maybe,
        weight_k: Maybe,
        cos: Maybe,
        sin: Maybe,
        eps: float,
        across_heads: bool,
        interleaved: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...] | None:
        """Run `reelweave.train.kernels.qk_norm.reference.forward` on the kernels."""
        tensors = (q, k, weight_q, weight_k, cos, sin)
        addresses, layouts = addresses_and_layouts(tensors)
        q_at, k_at, weight_q_at, weight_k_at, cos_at, sin_at = addresses
        aligned = (q_at | k_at | weight_q_at | weight_k_at | cos_at | sin_at) % VECTOR_BYTES == 0
        flags = across_heads, interleaved
        key = layouts, aligned, eps, flags
        try:
            plan = self._forwards[key]
        except KeyError:
            plan = self._forwards.add(key, self._plan("forward", tensors, aligned, eps, *flags, numerics))
        if plan.copies:
            arguments: tuple[Any, ...] = (*_fitting(tensors), eps, *flags, numerics)
            return self.forward(*arguments)
        if plan.run is None:
            return None
        of_q, of_k = plan.scratch
        y_q, y_k, rstd_q, rstd_k = empty(q), empty(k), empty(of_q), empty(of_k)
        of_queries = (q_at, 0, y_q.data_ptr(), rstd_q.data_ptr(), weight_q_at, 0)
        of_keys = (k_at, 0, y_k.data_ptr(), rstd_k.data_ptr(), weight_k_at, 0)
        plan.run((of_queries, of_keys, (cos_at, sin_at)))
        return y_q, y_k, rstd_q, rstd_k

    def backward(
        self,
        dq: torch.Tensor,
        dk: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        rstd_q: torch.Tensor,
        rstd_k: torch.Tensor,
        weight_q: Maybe,
        weight_k: Maybe,
        cos: Maybe,
        sin: Maybe,
        eps: float,
        across_heads: bool,
        interleaved: bool,
        numerics: str,
    ) -> tuple[torch.Tensor, ...] | None:
        """Run `reelweave.train.kernels.qk_norm.reference.backward` on the kernels."""
        # Layouts and alignment decide the kernel; a plan is made once for each.
        tensors = (q, k, weight_q, weight_k, cos, sin, dq, dk)
        addresses, layouts = addresses_and_layouts(tensors)
        q_at, k_at, weight_q_at, weight_k_at, cos_at, sin_at, dq_at, dk_at = addresses
        aligned = (
            q_at | k_at | weight_q_at | weight_k_at | cos_at | sin_at | dq_at | dk_at
        ) % VECTOR_BYTES == 0
        flags = across_heads, interleaved
        key = layouts, aligned, flags
        try:
            plan = self._backwards[key]
        except KeyError:
            plan = self._backwards.add(key, self._plan("backward", tensors, aligned, eps, *flags, numerics))
        # Layouts that no kernel reads are copied to one that it does.
        if plan.copies:
            q, k, weight_q, weight_k, cos, sin, dq, dk = _fitting(tensors)
            rest = (rstd_q, rstd_k, weight_q, weight_k, cos, sin, eps, *flags, numerics)
            return self.backward(dq, dk, q, k, *rest)
        if plan.run is None:
            return None
        # Gradients of the weights are sums over rows, by way of partial sums of the kernel's blocks.
        rstd_q, rstd_k = rstd_q.contiguous(), rstd_k.contiguous()
        dx_q, dx_k = empty(q), empty(k)
        dweight_q, dweight_k = plan.nothing
        partials_q_at = partials_k_at = dweight_q_at = dweight_k_at = 0
        of_q, of_k = plan.scratch
        if weight_q is not None:
            partials_q, dweight_q = empty(of_q), empty(weight_q)
            partials_q_at, dweight_q_at = partials_q.data_ptr(), dweight_q.data_ptr()
        if weight_k is not None:
            partials_k, dweight_k = empty(of_k), empty(weight_k)
            partials_k_at, dweight_k_at = partials_k.data_ptr(), dweight_k.data_ptr()
        # Addresses in the order of the kernel's arguments.
        of_queries = (q_at, dq_at, dx_q.data_ptr(), rstd_q.data_ptr(), weight_q_at, partials_q_at)
        of_keys = (k_at, dk_at, dx_k.data_ptr(), rstd_k.data_ptr(), weight_k_at, partials_k_at)
        of_weights = (partials_q_at, partials_k_at, dweight_q_at, dweight_k_at)
        plan.run((of_queries, of_keys, (cos_at, sin_at), of_weights))
        return dx_q, dx_k, dweight_q, dweight_k

    def _plan(
        self,
        direction: Direction,
        tensors: _Tensors,
        aligned: bool,
        eps: float,
        across_heads: bool,
        interleaved: bool,
        numerics: str,
    ) -> _Plan:
        """Return the plan of a layout, which is checked."""
        arguments: tuple[Any, ...] = (*tensors[:6], across_heads, numerics)
        check(*arguments)
        on_one_device(*(tensor for tensor in tensors if tensor is not None))
        if not all(tensor is fitting for tensor, fitting in zip(tensors, _fitting(tensors), strict=True)):
            return _Plan(None, copies=True)
        q, k, weight_q, weight_k, cos, _, *_ = tensors
        name, launcher = NAMES[q.dtype], self._launcher
        # Threads and shared memory for the wider of queries and keys; None: too wide, and PyTorch runs.
        geometry = pair_launch(
            direction,
            max(q.shape[2], k.shape[2]),
            q.shape[3],
            name,
            across_heads,
            cos is not None and not interleaved,
            aligned and _rows_aligned(tensors),
            launcher.shared_limit(q.device),
        )
        if geometry is None:
            return _Plan(None)
        kernel = kernel_name(direction, across_heads, name)
        # One grid: first the blocks of queries, then those of keys.
        resident = launcher.resident(kernel, q.device, geometry.threads, geometry.shared_bytes)
        rows = [x.shape[0] * x.shape[1] for x in (q, k)]
        per_block = rows_per_block(rows[0], rows[1], resident)
        blocks = [launch.blocks(count, per_block) for count in rows]
        args = _arguments(tensors, geometry, per_block, blocks[0], interleaved, eps)
        grid, block = (sum(blocks), 1), (geometry.threads, 1)
        launches = [Launch(kernel, args, grid, block, geometry.shared_bytes)]
        # Scratch: inverse norms for the backward, or partial sums of the weights' gradients.
        if direction == "forward":
            shapes = [(*x.shape[:2], 1 if across_heads else x.shape[2]) for x in (q, k)]
            scratch: tuple[Maybe, Maybe] = (template(q, *shapes[0]), template(q, *shapes[1]))
        else:
            weights = zip((weight_q, weight_k), blocks, strict=True)
            of_q, of_k = (None if w is None else template(q, count, len(w)) for w, count in weights)
            scratch = of_q, of_k
            launches += _second_stage(weight_q, weight_k, blocks)
        run, nothing = launcher.prepare(q.device, launches), (q.new_empty(0), q.new_empty(0))
        return _Plan(run, scratch=scratch, nothing=nothing)


def _arguments(
    tensors: _Tensors, geometry: PairLaunch, per_block: int, q_blocks: int, interleaved: bool, eps: float
) -> Structure:
    q, k, weight_q, weight_k, cos, _, *upstream = tensors
    weight = weight_k if weight_q is None else weight_q
    sides = zip((q, k), upstream or (None, None), strict=True)
    return QkNormArgs(
        side=(Heads * 2)(*(_side(x, dy) for x, dy in sides)),
        rotation_sample=0 if cos is None or cos.dim() == 2 else cos.stride(0),
        rotation_token=0 if cos is None else cos.stride(-2),
        rows_per_cta=per_block,
        q_blocks=q_blocks,
        width=q.shape[3],
        lanes=geometry.lanes,
        interleaved=interleaved,
        float_weights=weight is not None and weight.dtype == torch.float32,
        eps=eps,
    )


def _side(x: torch.Tensor, dy: Maybe) -> Structure:
    samples, tokens, heads, _ = x.shape
    return Heads(
        x_strides=HeadStrides(*_strides(x)),
        dy_strides=HeadStrides(*(_strides(dy) if dy is not None else ())),
        rows=samples * tokens,
        tokens=tokens,
        heads=heads,
    )


def _second_stage(weight_q: Maybe, weight_k: Maybe, blocks: Sequence[int]) -> list[Launch]:
    """Return the launch that adds up gradients of the weights, zero for no rows."""
    weight = weight_k if weight_q is None else weight_q
    if weight is None:
        return []
    columns = [0 if each is None else len(each) for each in (weight_q, weight_k)]
    args = QkReduceArgs(blocks=(c_longlong * 2)(*blocks), columns=(c_int * 2)(*columns))
    block = launch.reduce_block(2, max(columns), sum(blocks))
    grid = 2, launch.tiles(max(columns), block[0])
    return [Launch(f"qk_norm_weights_{NAMES[weight.dtype]}", args, grid, block)]


def _strides(x_BLHd: torch.Tensor) -> tuple[int, int, int]:
    """Return strides of samples, tokens and heads; of no elements any."""
    return head_strides(x_BLHd.shape, x_BLHd.stride()) or (0, 0, 0)


def _rows_aligned(tensors: _Tensors) -> bool:
    """Return True if what begins at a multiple of 16 bytes goes on so, from row to row."""
    q, k, _, _, cos, _, *upstream = tensors
    heads = [x for x in (q, k, *upstream) if x is not None]
    return all(launch.is_aligned(0, stride, x.element_size()) for x in heads for stride in _strides(x)) and (
        cos is None or launch.is_aligned(0, cos.stride(-2), cos.element_size())
    )


def _fitting(tensors: _Tensors) -> tuple[Any, ...]:
    """Return the tensors; copies where channels lie apart, or types differ."""
    q, k, weight_q, weight_k, cos, sin, *upstream = tensors
    dense = (None if each is None else each.contiguous() for each in (weight_q, weight_k, cos, sin))
    return (
        *(_dense_heads(x, q.dtype) for x in (q, k)),
        *dense,
        *(_dense_heads(x, q.dtype) for x in upstream),
    )


def _dense_heads(x_BLHd: Maybe, dtype: torch.dtype) -> Maybe:
    if x_BLHd is None:
        return None
    x_BLHd = x_BLHd.to(dtype)
    strides = head_strides(x_BLHd.shape, x_BLHd.stride())
    return x_BLHd.contiguous() if strides is None else x_BLHd


def pair_launch(
    direction: Direction,
    heads: int,
    width: int,
    x: Dtype,
    across_heads: bool,
    halves_rotate: bool,
    aligned: bool,
    shared_limit: int,
) -> PairLaunch | None:
    """The launch that serves rows of `heads` heads, or None where the kernels do not.

    They hold a row in registers: up to 8192 elements. Wider ones, and heads that do not divide into 16 bytes, belong
    to no model that trains for long; the reference serves them.

    Args:
        direction: The pass.
        heads: Heads of a token; the larger number of q's and k's.
        width: Width of a head, d.
        x: Type of the activations.
        across_heads: The heads of a token are normed together.
        halves_rotate: There is a rotation, of channels (i, i + d / 2).
        aligned: Every pointer, token, head and row of angles begins at a multiple of 16 bytes.
        shared_limit: Shared memory one block may ask for (sharedMemPerBlockOptin), in bytes.
    """
    size = VECTOR_BYTES // DTYPE_BYTES[x]
    vectors, rest = divmod(width, size)
    if not aligned or not vectors or rest or (halves_rotate and vectors % 2):
        return None
    lanes = -(-vectors // 2)
    if not across_heads:
        lanes = 1 << (lanes - 1).bit_length()
        if lanes > WARP:
            return None
    pairs = PAIR_ELEMENTS // (2 * size)
    threads = -(-heads * lanes // (pairs * WARP)) * WARP
    row_bytes = DTYPE_BYTES[x] * (2 if direction == "backward" else 1)
    shared_bytes = launch.ring_bytes(row_bytes, PAIR_ELEMENTS, threads)
    fits = threads <= constant("PairThreads") and shared_bytes <= shared_limit
    return PairLaunch(threads, lanes, shared_bytes) if fits else None


def rows_per_block(q_rows: int, k_rows: int, resident: int) -> int:
    """Consecutive rows a block walks, of q or of k, when `resident` blocks fit the device at once.

    Args:
        q_rows: Tokens of the queries, B L.
        k_rows: Tokens of the keys, B M.
        resident: Blocks; q and k end in a block of their own each, hence one less counts.
    """
    return launch.rows_per_block(q_rows + k_rows, max(1, resident - 1))


def head_strides(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int] | None:
    """Elements between samples, tokens and heads of [B, L, H, d]; None where channels lie apart and a copy is due.

    A dimension of one has none: what its stride says is never walked, and must not spoil the alignment.
    """
    if strides[3] != 1 and sizes[3] != 1:
        return None
    sample, token, head = (
        0 if size == 1 else stride for size, stride in zip(sizes[:3], strides[:3], strict=True)
    )
    return sample, token, head


def kernel_name(direction: Direction, across_heads: bool, x: Dtype) -> str:
    """Name of a kernel. The second stage is `qk_norm_weights_` and the type of the weights."""
    return f"qk_norm_{direction}_{'across' if across_heads else 'head'}_{x}"
