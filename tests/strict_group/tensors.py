"""Which tensors a GPU's communicator takes.

On the CPU every tensor is on the rank's device. So a mode of torch's functions follows those that would not be: they
are created without a device, as by `torch.tensor([1])`, or copied to the host, and moved to no device since. What is
computed of such tensors alone is one, too. Other threads than the first are not followed, and tensors that programs of
tests create stand for those of any device, except the planted faults.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from tests.strict_group.refused import Refused, call_site

_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
}
"""Dtypes that ProcessGroupNCCL sends; others end in "Unconvertible NCCL type"."""
_FACTORIES = {
    torch.arange,
    torch.as_tensor,
    torch.asarray,
    torch.empty,
    torch.eye,
    torch.from_numpy,
    torch.frombuffer,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.rand,
    torch.randint,
    torch.randn,
    torch.randperm,
    torch.tensor,
    torch.zeros,
}
_MOVES = {torch.Tensor.to, torch.Tensor.cuda}


class HostTensors(TorchFunctionMode):
    """Mode that notes tensors of the host, with the line that made them."""

    made: ClassVar[Any] = WeakIdKeyDictionary()
    _noted: ClassVar["HostTensors | None"] = None

    @classmethod
    def note(cls) -> None:
        """Follow the tensors of this thread from here on."""
        if cls._noted is None:
            cls._noted = cls()
            cls._noted.__enter__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function is torch.Tensor.cpu:
            # On a GPU it is another tensor, and the one it is a copy of stays where it is.
            result = result.view_as(result) if result is args[0] else result
            if site := _followed(call_site()):
                self.made[result] = site
            return result
        made = list(_tensors(result))
        if not made:
            return result
        given = list(_tensors((args, kwargs)))
        moved = kwargs.get("device") is not None or (function in _MOVES and _names_device(args))
        site = None
        if function in _FACTORIES and not given:
            site = None if moved else _followed(call_site())
        elif given and not moved and all(x in self.made for x in given):
            site = self.made[given[0]]
        for x in made:
            if site is not None:
                self.made[x] = site
            elif moved and x in self.made:
                del self.made[x]
        return result


def _followed(site: str) -> str | None:
    """Return the line that creates a tensor, if what it creates is followed."""
    return None if site.startswith("tests/") and "strict_faults" not in site else site


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _names_device(args: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.device | str) for value in args[1:])


def check(tensors: Sequence[torch.Tensor], where: str) -> None:
    """Refuse tensors that no communicator of a GPU takes.

    Raises:
        Refused: a tensor is one of the host, is not contiguous, or has a dtype that NCCL lacks.
    """
    for x in tensors:
        shape = f"a tensor of shape {tuple(x.shape)} and {x.dtype}"
        if x in HostTensors.made:
            raise Refused(
                f"{where}: {shape} is on the host since {HostTensors.made[x]}, not on the rank's device"
            )
        if not x.is_contiguous():
            raise Refused(f"{where}: {shape} is not contiguous, its strides are {tuple(x.stride())}")
        if x.dtype not in _DTYPES:
            raise Refused(f"{where}: {shape} has a dtype that NCCL does not send")
