"""Copies to the device that the host does not wait for, and the one back that it does."""

import math
from collections.abc import Sequence
from functools import cache

import torch

_ALIGNED = 16  # bytes: alignment for tensors of any dtype


def send(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors on a device; the host does not wait, and compute that needs none of them does not either.

    On a GPU the copies run in a stream of their own. Tensors that are not page-locked are packed into one page-locked
    buffer and share one copy. Tensors that are on the device, or all if it is the CPU, are returned as they are.

    Args:
        tensors: tensors of the host or of the device.
        device: target device.
    """
    if device.type == "cpu":
        return list(tensors)
    moved = {index: tensor for index, tensor in enumerate(tensors) if tensor.device.type != "cpu"}
    ready = {
        index: tensor for index, tensor in enumerate(tensors) if index not in moved and tensor.is_pinned()
    }
    rest = {
        index: tensor for index, tensor in enumerate(tensors) if index not in moved and index not in ready
    }
    if not ready and not rest:
        return list(tensors)
    sources = list(ready.values())
    if rest:
        sources.append(_pack_tensors(list(rest.values())))
    copies = _copy_tensors(sources, device)
    moved |= zip(ready, copies, strict=False)
    if rest:
        moved |= zip(rest, _unpack_tensors(copies[-1], list(rest.values())), strict=True)
    return [moved[index] for index in range(len(tensors))]


def send_one(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return one tensor on a device, as `send`."""
    return send([tensor], device)[0]


def read(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Return scalars of a device in one transfer, for which the host waits."""
    if not scalars:
        return []
    return torch.stack([scalar.detach().double() for scalar in scalars]).tolist()


class Pace:
    """Limit of how far the host runs ahead of a GPU, which bounds the memory of microbatches that wait there.

    Args:
        device: device of the model; the host never runs ahead of a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Begin a microbatch; waits until the GPU has finished all but the microbatch before."""
        if self._device.type != "cuda":
            return
        now = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        now.record(torch.cuda.current_stream(self._device))
        if self._before is not None:
            self._before.synchronize()
        self._before = now


def _copy_tensors(sources: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy page-locked tensors."""
    if device.type != "cuda":
        return [source.to(device, non_blocking=True) for source in sources]
    compute, side = torch.cuda.current_stream(device), _side_stream(device)
    with torch.cuda.stream(side):
        copies = [source.to(device, non_blocking=True) for source in sources]
    compute.wait_stream(side)
    for copy in copies:
        copy.record_stream(compute)
    return copies


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _pack_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a page-locked buffer of the bytes of tensors, uint8."""
    buffer = torch.empty(sum(map(_room, tensors)), dtype=torch.uint8, pin_memory=True)
    for tensor, part in zip(tensors, _unpack_tensors(buffer, tensors), strict=True):
        part.copy_(tensor)
    return buffer


def _unpack_tensors(buffer: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of a buffer with the shapes and dtypes of tensors."""
    views, at = [], 0
    for tensor in like:
        size = math.prod(tensor.shape) * tensor.itemsize
        views.append(buffer[at : at + size].view(tensor.dtype).view(tensor.shape))
        at += _room(tensor)
    return views


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.itemsize // _ALIGNED) * _ALIGNED
