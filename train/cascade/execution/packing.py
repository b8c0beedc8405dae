"""Serialization of several tensors into one message."""

from collections.abc import Sequence

import torch

from reelweave.train.cascade.execution.ops import TensorSpec

_ALIGNED = 16  # bytes: alignment for tensors of any dtype


def pack_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate the bytes of tensors, uint8 [bytes]; a single contiguous tensor is not copied."""
    flats = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    if len(flats) == 1:
        return flats[0]
    return torch.cat([_fill_message(flat) for flat in flats])


def empty(parts: Sequence[TensorSpec], device: torch.device, pinned: bool = False) -> torch.Tensor:
    """Allocate a buffer for a message of these parts."""
    size = parts[0].bytes if len(parts) == 1 else sum(map(_room, parts))
    return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)


def unpack_tensors(message: torch.Tensor, parts: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Split a message into tensors that share its memory."""
    tensors, at = [], 0
    for part in parts:
        tensors.append(message[at : at + part.bytes].view(part.dtype).view(part.shape))
        at += _room(part)
    return tensors


def _room(part: TensorSpec) -> int:
    return -(-part.bytes // _ALIGNED) * _ALIGNED


def _fill_message(flat: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(flat, (0, -len(flat) % _ALIGNED))
