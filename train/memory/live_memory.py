"""The bytes that operators of PyTorch made and that are still in use, and the most there were at once."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts, inside of ``with``, the storages of what operators return, each once, until it is freed.

    On any device, and of tensors without data (`torch._subclasses.FakeTensor`). What an operator uses inside is not
    seen; tensors that were there before are not counted.

    Attributes:
        peak: the most bytes at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._bytes = self._gathered = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._elastic: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @property
    def live(self) -> int:
        """Bytes in use now."""
        storages = (reference() for reference in self._elastic.values())
        self._gathered = sum(storage.nbytes() for storage in storages if storage is not None)
        return self._bytes + self._gathered

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(_wraps_others(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        taken = _storages((args, kwargs))
        # FSDP frees what it gathered by giving its storages no bytes, which no operator tells of.
        elastic = func.namespace == "fsdp"
        for key, storage in (_storages(out) | (taken if elastic else {})).items():
            if key in self._seen or key not in taken:
                self._see(key, storage, elastic)
        # What was gathered shrinks unseen, and grows for FSDP's operators alone.
        if elastic or self._bytes + self._gathered > self.peak:
            self.peak = max(self.peak, self.live)
        return out

    def _see(self, key: int, storage: torch.UntypedStorage, elastic: bool) -> None:
        if key in self._elastic:
            return
        if elastic:
            if key in self._seen:
                self._bytes -= storage.nbytes()
                del self._seen[key]
                self._elastic[key] = weakref.ref(storage, lambda _: self._elastic.pop(key, None))
            return
        if key not in self._seen:
            size = storage.nbytes()
            self._bytes += size
            self._seen[key] = weakref.ref(storage, lambda _: self._freed(key, size))

    def _freed(self, key: int, size: int) -> None:
        if self._seen.pop(key, None) is not None:
            self._bytes -= size


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage for storage in storages}


def _wraps_others(kind: type) -> bool:
    """Whether tensors of a type are made of others (DTensor), whose operators come here as well."""
    return hasattr(kind, "__tensor_flatten__")
