"""Accelerator emulated on the CPU, which notes each point where a host that runs ahead of it would wait.

Its tensors hold their values on the CPU and compute there, so that whole training steps run to their end with the right
numbers. The device is PyTorch's ``privateuseone``, which this module registers for good: import it in a process of its
own.
"""

import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

NAME = "emulated"
ROOT = Path(__file__).parents[2]


class _Module(backend_registration._DummyBackendModule):
    """Functions that PyTorch asks a device's module for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())

DEVICE = torch.device(NAME, 0)
CPU = torch.device("cpu")

_aten: Any = torch.ops.aten
_READS = {_aten._local_scalar_dense, _aten.equal, _aten.is_nonzero}
_VALUE_SHAPES = {
    _aten.nonzero,
    _aten.masked_select,
    _aten._unique2,
    _aten.unique_dim,
    _aten.unique_consecutive,
    _aten.bincount,
}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._unsafe_index}
_COPIES = {_aten._to_copy, _aten.copy_}


class OnDevice(torch.Tensor):
    """Tensor of the emulated accelerator around its values on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "OnDevice":
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, None)


class HostWaits(TorchDispatchMode):
    """Counter of the operations that make the host wait for the device, by line of this repository.

    Kinds: ``read`` (a value or a tensor comes to the host), ``copy`` (a tensor goes to the device blocking, or from
    memory that is not page-locked), ``shape`` (the size of a result depends on values).

    Args:
        within: function, as ``file:name``, whose waits count; empty: all count.
        readers: functions inside it in which the host may wait: there it reads what it reports.

    Attributes:
        found: number of waits by place and kind.
        reads: number of waits of the readers, by place and kind.
        sent: number of copies to the device that nothing waits for.
    """

    def __init__(self, within: str, readers: Collection[str]) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.sent = 0
        self._within, self._readers = within, readers
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self._factories = _Factories(self)

    def __enter__(self) -> "HostWaits":
        self._factories.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._factories.__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, self)

    def note(self, kind: str, function: str) -> None:
        """Count a wait of the line of this repository that runs now."""
        frames = _frames()
        running = {f"{path}:{name}" for path, name, _ in frames}
        if not self._within or self._within in running:
            path, name, line = frames[0] if frames else ("outside", "", 0)
            noted = self.reads if running & set(self._readers) else self.found
            noted[f"{kind} at {path}:{line} {name} ({function})"] += 1

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        """Note memory as page-locked, for as long as this object lives."""
        storage = x.untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return x

    def pinned(self, x: torch.Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._pinned


class _Factories(TorchFunctionMode):
    """Tensors that are made of Python numbers on the device: a blocking copy, which the dispatcher does not see."""

    def __init__(self, waits: HostWaits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        made = (torch.tensor, torch.as_tensor, torch.asarray)
        if function in made and not isinstance(args[0], torch.Tensor) and _is_here(kwargs.get("device")):
            self._waits.note("copy", function.__name__)
            return OnDevice(function(*args, **kwargs | {"device": CPU}))
        if function is torch.Tensor.new_tensor and isinstance(args[0], OnDevice):
            self._waits.note("copy", "new_tensor")
            return OnDevice(torch.tensor(args[1], dtype=args[0].dtype))
        if function is torch.Tensor.tolist and isinstance(args[0], OnDevice):
            self._waits.note("read", "tolist")
            return args[0].values.tolist()
        return function(*args, **kwargs)


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(function: Any, args: Any, kwargs: dict[str, Any], waits: HostWaits | None) -> Any:
    """Run an operation on the CPU; its results are on the device if its inputs or its arguments are."""
    packet = function.overloadpacket
    tensors: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
    ours = [x for x in tensors if isinstance(x, OnDevice)]
    device = kwargs.get("device")
    there = bool(ours) if device is None else _is_here(device)
    if packet is _aten.is_pinned:
        return waits is not None and not ours and waits.pinned(args[0])
    if packet is _aten._pin_memory:
        assert waits is not None
        return waits.pin(args[0].clone())
    if ours and packet not in _COPIES | _INDEXING:
        for x in tensors:
            if not isinstance(x, OnDevice) and x.ndim:
                raise RuntimeError(f"{function} got tensors of two devices")
    if waits is not None:
        _look(function, packet, args, kwargs, there, waits)
    inner_args, inner_kwargs = tree_map_only(OnDevice, lambda x: x.values, (args, dict(kwargs)))
    if there:
        inner_kwargs.update({"device": CPU} if device is not None else {})
    page_locked = inner_kwargs.pop("pin_memory", False)
    made = function(*inner_args, **inner_kwargs)
    if packet is _aten._to_copy and made is inner_args[0]:
        made = made.clone()
    if page_locked and waits is not None and not there:
        return waits.pin(made)
    if not there or (packet is _aten.copy_ and not isinstance(args[0], OnDevice)):
        return args[0] if packet is _aten.copy_ else made
    return return_and_correct_aliasing(function, args, kwargs, tree_map_only(torch.Tensor, OnDevice, made))


def _look(
    function: Any, packet: Any, args: Any, kwargs: dict[str, Any], there: bool, waits: HostWaits
) -> None:
    """Note it if the host waits for an operation."""
    here = any(isinstance(x, OnDevice) for x in args)
    name = str(packet)
    if here and packet in _READS:
        waits.note("read", name)
    if here and packet in _VALUE_SHAPES:
        waits.note("shape", name)
    if here and packet is _aten.repeat_interleave and kwargs.get("output_size") is None:
        waits.note("shape", name)
    if here and packet in _INDEXING:
        for pick in args[1]:
            if pick is not None and pick.dtype in (torch.bool, torch.uint8):
                waits.note("shape", name)
            elif pick is not None and not isinstance(pick, OnDevice):
                waits.note("copy", name)
    if packet in _COPIES:
        inside = packet is _aten.copy_
        source, quick = (
            args[1] if inside else args[0],
            kwargs.get("non_blocking") or (inside and len(args) > 2),
        )
        to_device = isinstance(args[0], OnDevice) if inside else there
        if isinstance(source, OnDevice) and not to_device:
            waits.note("read", name)
        if to_device and not isinstance(source, OnDevice):
            if quick and waits.pinned(source):
                waits.sent += 1
            elif source.ndim or not inside:
                waits.note("copy", name)


def _frames() -> list[tuple[str, str, int]]:
    """Return file, function and line of the frames of this repository outside tests, innermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("train", "loader"):
            found.append((str(path.relative_to(ROOT)), frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found
