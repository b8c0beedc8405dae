"""Interface of kernel launchers, and what the operators' host code shares: argument blocks, plans, checks.

A call of an operator is cheap since everything that follows from its layout is prepared once: `Plans` keeps the
launches of each layout, and of their argument blocks only pointers change from call to call (`argument_blocks`).
"""

import ctypes
from collections.abc import Callable, Hashable, Sequence
from ctypes import Structure
from functools import cache, partial
from struct import Struct
from typing import Any, NamedTuple, Protocol

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.cuda.launch import Dtype

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MAX_PLANS = 4096
"""Layouts that an operator remembers: packs of any length would otherwise fill the memory in weeks."""

Pointers = Sequence[int]
"""Addresses for pointers that are neighbours in an argument block, 0 for none; empty: they stay as they are, null."""
Run = Callable[[Sequence[Pointers]], None]
"""Runs prepared launches in turn, with the pointers of all their blocks."""


class Launch(NamedTuple):
    """Grid, block and arguments with which a kernel is launched.

    Attributes:
        kernel: name of the kernel.
        args: argument block without its pointers.
        grid: blocks, x and y.
        block: threads of a block, x and y.
        shared_bytes: dynamic shared memory of a block.
    """

    kernel: str
    args: Structure
    grid: tuple[int, int]
    block: tuple[int, int]
    shared_bytes: int = 0


class Launcher(Protocol):
    """Launcher of kernels in csrc/."""

    def shared_limit(self, device: torch.device) -> int:
        """Return the shared memory available to a block, in bytes."""

    def clusters(self, device: torch.device) -> bool:
        """Return True if blocks may form clusters."""

    def resident(
        self, kernel: str, device: torch.device, threads: int, shared_bytes: int, cluster: int = 1
    ) -> int:
        """Return the number of clusters of such blocks that are resident on the device at once."""

    def prepare(self, device: torch.device, launches: Sequence[Launch]) -> Run:
        """Return a function that runs the launches on the device's current stream; any thread may call it."""


def argument_blocks(launches: Sequence[Launch]) -> tuple[list[Structure], list[Callable[..., None]]]:
    """Return copies of the launches' argument blocks, and functions that set their pointers, each some neighbours."""
    blocks = [type(launch.args).from_buffer_copy(launch.args) for launch in launches]
    return blocks, [
        partial(Struct(f"{count}Q").pack_into, block, offset)
        for block in blocks
        for offset, count in _pointer_runs(type(block))
    ]


@cache
def _pointer_runs(structure: type[Structure]) -> list[tuple[int, int]]:
    """Return offset and count of pointers that are neighbours, of all pointers of a structure."""
    size, runs = ctypes.sizeof(ctypes.c_void_p), list[tuple[int, int]]()
    for offset in _pointer_offsets(structure):
        if runs and offset == runs[-1][0] + runs[-1][1] * size:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((offset, 1))
    return runs


def _pointer_offsets(kind: Any, base: int = 0) -> list[int]:
    if kind is ctypes.c_void_p:
        return [base]
    if issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        return [at for i in range(kind._length_) for at in _pointer_offsets(kind._type_, base + i * size)]
    fields = getattr(kind, "_fields_", ())
    return [at for name, field in fields for at in _pointer_offsets(field, base + getattr(kind, name).offset)]


class Plans(dict[Hashable, Any]):
    """Plans of an operator by layout. It forgets all of them rather than grow without end."""

    def add(self, key: Hashable, plan: Any) -> Any:
        """Keep a plan, and return it."""
        if len(self) >= MAX_PLANS:
            self.clear()
        self[key] = plan
        return plan


def addresses_and_layouts(tensors: Sequence[torch.Tensor | None]) -> tuple[list[int], Hashable]:
    """Return the addresses of tensors, 0 for None, and all that a launch depends on beside them."""
    return [0 if x is None else x.data_ptr() for x in tensors], tuple(
        [
            None if x is None else (x.shape, x.is_contiguous() or x.stride(), x.dtype, x.get_device())
            for x in tensors
        ]
    )


def template(like: torch.Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of one element in that shape: `empty` of it costs half of what a shape and a type cost."""
    return like.new_empty((), dtype=dtype).expand(shape)


empty = partial(torch.empty_like, memory_format=torch.contiguous_format)
"""Returns an uninitialized contiguous tensor of a tensor's shape, type and device."""


def on_one_device(x: torch.Tensor, *tensors: torch.Tensor | None) -> None:
    """Check that all tensors are on x's device.

    Raises:
        UsageError: a tensor is on another device.
    """
    for tensor in tensors:
        if tensor is not None and tensor.device != x.device:
            raise UsageError(f"all tensors must be on one device, not on {x.device} and {tensor.device}")
