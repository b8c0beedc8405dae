"""Models that leave the GPU while a decode needs their memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def on_the_host(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Move modules' tensors from a device to the host for the body, and back after it; nothing on a CPU.

    Values return to the bit. The modules must not be in training: optimizers hold their tensors on the GPU.
    """
    if device.type == "cpu" or not modules:
        yield
        return
    for module in modules:
        module.to("cpu")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for module in modules:
            module.to(device)
