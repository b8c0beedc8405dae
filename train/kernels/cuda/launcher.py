"""Who runs the kernels of csrc/, and what the host sides of their operators share."""

from ctypes import Structure
from dataclasses import dataclass
from typing import Protocol

import torch

from loader.errors import UsageError
from train.kernels.cuda.launch import Dtype

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Launcher(Protocol):
    """Who runs the kernels."""

    def shared_limit(self, device: torch.device) -> int:
        """Shared memory one block may ask for, in bytes."""

    def resident(self, kernel: str, device: torch.device, threads: int, shared_bytes: int) -> int:
        """Blocks of this shape that fit the device at once."""

    def run(
        self,
        kernel: str,
        device: torch.device,
        args: Structure,
        grid: tuple[int, int],
        block: tuple[int, int],
        shared_bytes: int = 0,
    ) -> None:
        """Launches the kernel on the device's current stream; `args` is copied."""


@dataclass(frozen=True)
class Limited:
    """The same launcher, with so many bytes of shared memory for a block at most."""

    launcher: Launcher
    shared_bytes: int

    def shared_limit(self, device: torch.device) -> int:
        """The smaller of both limits."""
        return min(self.shared_bytes, self.launcher.shared_limit(device))

    def resident(self, kernel: str, device: torch.device, threads: int, shared_bytes: int) -> int:
        return self.launcher.resident(kernel, device, threads, shared_bytes)

    def run(
        self,
        kernel: str,
        device: torch.device,
        args: Structure,
        grid: tuple[int, int],
        block: tuple[int, int],
        shared_bytes: int = 0,
    ) -> None:
        """By the launcher."""
        self.launcher.run(kernel, device, args, grid, block, shared_bytes)


def on_one_device(x: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Refuses pointers that a kernel could not follow.

    Raises:
        UsageError: tensors of another device than x's.
    """
    for tensor in others:
        if tensor is not None and tensor.device != x.device:
            raise UsageError(f"all tensors must be on one device, not on {x.device} and {tensor.device}")


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Where it begins; None for nothing."""
    return None if tensor is None else tensor.data_ptr()
