"""What the launches of all Triton kernels share."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

WIDEST = 8192
"""Elements of a row that a program holds at most."""

PARTS = 528
"""Programs of a backward pass: four for each of the 132 multiprocessors of an H100 or H200."""


def dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor, contiguous, if there is one."""
    return None if tensor is None else tensor.contiguous()


def on_device(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which may not be x's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
