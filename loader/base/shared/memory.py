"""Tensors in memory shared by processes."""

import os
from typing import BinaryIO

import torch


def has_memfd() -> bool:
    """Return whether the system supports anonymous memory files, which `/dev/shm` and its limit do not bound."""
    return hasattr(os, "memfd_create")


def open_shared() -> BinaryIO:
    """Open an anonymous file in memory for writing."""
    # Unlike PyTorch's shared memory, this is not limited by /dev/shm, 64 MB in a container by default.
    return os.fdopen(os.memfd_create("reelweave"), "wb")


def map_shared(file: BinaryIO, size: int) -> torch.Tensor:
    """Return a uint8 tensor over such a file; other processes receive it without a copy."""
    storage = torch.UntypedStorage._new_shared_fd_cpu(file.fileno(), size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def shared_zeros(size: int) -> torch.Tensor:
    """Return a small uint8 tensor of zeros that child processes can write to, too."""
    if not has_memfd():
        zeros = torch.zeros(size, dtype=torch.uint8)
        zeros.share_memory_()  # type: ignore[no-untyped-call]
        return zeros
    with open_shared() as file:
        file.truncate(size)
        return map_shared(file, size)
