"""Tensors in memory that processes share."""

import os
from typing import BinaryIO

import torch


def has_memfd() -> bool:
    """Tell whether the system makes anonymous files in memory, which `/dev/shm` and its limit do not bound."""
    return hasattr(os, "memfd_create")


def open_shared() -> BinaryIO:
    """Open an anonymous file in memory for writing."""
    # Unlike what PyTorch makes, it is not bounded by /dev/shm, which is 64 MB in a container by default.
    return os.fdopen(os.memfd_create("reelweave"), "wb")


def map_shared(file: BinaryIO, size: int) -> torch.Tensor:
    """Return the uint8 tensor that lies in such a file; other processes get it without a copy."""
    storage = torch.UntypedStorage._new_shared_fd_cpu(file.fileno(), size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def shared_zeros(size: int) -> torch.Tensor:
    """Return a small uint8 tensor of zeros that child processes write to as well."""
    if not has_memfd():
        zeros = torch.zeros(size, dtype=torch.uint8)
        zeros.share_memory_()  # type: ignore[no-untyped-call]
        return zeros
    with open_shared() as file:
        file.truncate(size)
        return map_shared(file, size)
