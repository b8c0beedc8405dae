"""Interface of kernel launchers, and helpers shared by the operators' host code."""

from ctypes import Structure
from typing import Protocol

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.cuda.launch import Dtype

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


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

    def run(
        self,
        kernel: str,
        device: torch.device,
        args: Structure,
        grid: tuple[int, int],
        block: tuple[int, int],
        shared_bytes: int = 0,
    ) -> None:
        """Launch the kernel on the device's current stream; `args` is copied."""


def on_one_device(x: torch.Tensor, *tensors: torch.Tensor | None) -> None:
    """Check that all tensors are on x's device.

    Raises:
        UsageError: a tensor is on another device.
    """
    for tensor in tensors:
        if tensor is not None and tensor.device != x.device:
            raise UsageError(f"all tensors must be on one device, not on {x.device} and {tensor.device}")


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's data; None without a tensor."""
    return None if tensor is None else tensor.data_ptr()
