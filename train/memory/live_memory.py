"""Counter of live tensor bytes and their peak, for any device and for tensors without data."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Dispatch mode that counts each storage that operators return, once, until it is freed.

    Works on any device, also for tensors without data (`torch._subclasses.FakeTensor`). Workspaces inside
    operators and earlier tensors are not counted.

    Attributes:
        peak: peak of live bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._bytes = self._gathered = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._elastic: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @property
    def live(self) -> int:
        """Number of live bytes now."""
        storages = (reference() for reference in self._elastic.values())
        self._gathered = sum(storage.nbytes() for storage in storages if storage is not None)
        return self._bytes + self._gathered

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(_wraps_others(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        arg_storages = _storages((args, kwargs))
        # FSDP frees gathered weights by resizing storages to 0, which no operator reports.
        elastic = func.namespace == "fsdp"
        for key, storage in (_storages(out) | (arg_storages if elastic else {})).items():
            if key in self._seen or key not in arg_storages:
                self._see(key, storage, elastic)
        # Gathered storages shrink unseen, and only FSDP's operators grow them.
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
            self._seen[key] = weakref.ref(storage, lambda _: self._free(key, size))

    def _free(self, key: int, size: int) -> None:
        if self._seen.pop(key, None) is not None:
            self._bytes -= size


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """Return the storages of all tensors in tuples, lists and dictionaries, faster than a general walk."""
    storages, pending = {}, [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, torch.Tensor):
            storage = node.untyped_storage()
            storages[storage._cdata] = storage
        elif isinstance(node, tuple | list):
            pending.extend(node)
        elif isinstance(node, dict):
            pending.extend(node.values())
    return storages


def _wraps_others(kind: type) -> bool:
    """Return True for wrapper types (DTensor), whose inner operators are dispatched as well."""
    return hasattr(kind, "__tensor_flatten__")
