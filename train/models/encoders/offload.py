"""Frozen encoders whose weights stay on the host and come to the device layer by layer, while they are used.

Two buffers on the device serve all layers in turns: a layer's weights arrive while the layer before computes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from reelweave.train.models.encoders.layers import layers_of

_ALIGNED = 256  # bytes, as CUDA's allocator aligns


def offload(model: nn.Module, device: torch.device) -> None:
    """Keep an encoder's weights on the host between its uses, page-locked for a GPU.

    Args:
        model: frozen encoder of transformers, on the host.
        device: device that it computes on; its buffers, which are few, move there for good.
    """
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    # Weights of layers go to the device by turns, the next while one computes; the rest for the whole pass.
    layers = [_HostWeights(list(layer.parameters()), device) for layer in layers_of(model)]
    within = {id(parameter) for layer in layers for parameter in layer.parameters}
    rest = _HostWeights(
        [parameter for parameter in model.parameters() if id(parameter) not in within], device
    )
    turns = _Turns(max((layer.bytes for layer in layers), default=0), device)

    def enter(*_: object) -> None:
        turns.begin()
        rest.lend(torch.empty(rest.bytes, dtype=torch.uint8, device=device))

    def leave(*_: object) -> None:
        rest.take_back()
        turns.end()

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)
    for module, weights in zip(layers_of(model), layers, strict=True):
        module.register_forward_pre_hook(_Lend(turns, weights))
        module.register_forward_hook(_TakeBack(turns, weights), always_call=True)


class _HostWeights:
    """Weights of one layer in one buffer on the host."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self.parameters = list(parameters)
        self.bytes = sum(_room(parameter) for parameter in parameters)
        self._host = torch.empty(self.bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._own = self._views(self._host)
        for parameter, host_copy in zip(self.parameters, self._own, strict=True):
            host_copy.copy_(parameter.detach())
            parameter.data = host_copy

    def lend(self, buffer: torch.Tensor) -> None:
        """Copy the weights into a buffer of the device, and compute with them there; the host does not wait."""
        buffer[: self.bytes].copy_(self._host, non_blocking=True)
        for parameter, view in zip(self.parameters, self._views(buffer), strict=True):
            parameter.data = view

    def take_back(self) -> None:
        for parameter, host_copy in zip(self.parameters, self._own, strict=True):
            parameter.data = host_copy

    def _views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        views, at = [], 0
        for parameter in self.parameters:
            size = math.prod(parameter.shape) * parameter.itemsize
            views.append(buffer[at : at + size].view(parameter.dtype).view(parameter.shape))
            at += _room(parameter)
        return views


class _Turns:
    """Two buffers of a device that exist while an encoder computes, and the stream that fills them on a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._buffers: list[torch.Tensor] = []
        self._used: dict[int, Any] = {}
        self._number = 0
        self._side: Any = None

    def begin(self) -> None:
        self._buffers = [torch.empty(self._size, dtype=torch.uint8, device=self._device) for _ in range(2)]
        self._used.clear()
        if self._device.type == "cuda":
            self._side = self._side or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
            # The buffers' memory may still be in use by what ran before.
            self._side.wait_stream(torch.cuda.current_stream(self._device))

    def lend(self, weights: _HostWeights) -> None:
        """Fill the buffer that the layer before the last one has left."""
        slot = self._number % 2
        if self._side is None:
            weights.lend(self._buffers[slot])
            return
        if slot in self._used:
            self._side.wait_event(self._used[slot])
        with torch.cuda.stream(self._side):
            weights.lend(self._buffers[slot])
        torch.cuda.current_stream(self._device).wait_stream(self._side)

    def take_back(self, weights: _HostWeights) -> None:
        """Leave the buffer to the layer after the next one."""
        weights.take_back()
        if self._side is not None:
            self._used[self._number % 2] = torch.cuda.current_stream(self._device).record_event()
        self._number += 1

    def end(self) -> None:
        """Free the buffers; the device has waited for all copies into them."""
        self._buffers.clear()


class _Lend:
    def __init__(self, turns: _Turns, weights: _HostWeights) -> None:
        self._turns, self._weights = turns, weights

    def __call__(self, *_: object) -> None:
        self._turns.lend(self._weights)


class _TakeBack(_Lend):
    def __call__(self, *_: object) -> None:
        self._turns.take_back(self._weights)


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.itemsize // _ALIGNED) * _ALIGNED
