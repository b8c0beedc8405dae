"""Model that leaves the GPU while a decode needs its memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def on_the_host(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a module's tensors to the host for the body, and back after it; nothing on a CPU.

    Values return to the bit. The module must not be in training: optimizers hold its tensors on the GPU.
    """
    if device.type != "cuda":
        yield
        return
    module.to("cpu")
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        module.to(device)
