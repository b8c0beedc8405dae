"""Bytes of tensors while a model is loaded, counted by operators: the same on every machine."""

from collections.abc import Sequence
from typing import Any

import torch

from reelweave.train.memory.live_memory import LiveMemory

_READS = {
    torch.ops.aten.copy_.default: 1,
    torch.ops.aten._to_copy.default: 0,
    torch.ops.aten.clone.default: 0,
}
"""Operators that read a tensor from its file, and the place of that tensor among their arguments."""


class AllocatedMemory(LiveMemory):
    """Live bytes of tensors with data."""

    def _see(self, key: int, storage: torch.UntypedStorage, elastic: bool) -> None:
        if storage.device.type != "meta":
            super()._see(key, storage, elastic)


class Loading(AllocatedMemory):
    """Live bytes of tensors with memory of their own, and what is read of tensors that safetensors has mapped.

    Attributes:
        read_bytes: bytes that were read of mapped tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self._mapped: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.set_.source_Storage:  # only safetensors makes tensors of storages
            storage = args[1].untyped() if isinstance(args[1], torch.TypedStorage) else args[1]
            self._mapped[storage._cdata] = storage
        if func in _READS:
            source = args[_READS[func]]
            if type(source) is torch.Tensor and source.untyped_storage()._cdata in self._mapped:
                self.read_bytes += source.nbytes
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _see(self, key: int, storage: torch.UntypedStorage, elastic: bool) -> None:
        if key not in self._mapped:
            super()._see(key, storage, elastic)
