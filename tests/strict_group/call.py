"""One call of a strict group: what it reads, what it writes, and that neither is touched before it is waited for."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.strict_group.refused import Refused


@dataclass(eq=False)
class Call:
    """A call between issue and `finish`.

    Gloo computes on copies. A tensor that is both read and written has one.

    Attributes:
        where: rank, group, call and line, in words.
        inputs: tensors that are read.
        outputs: tensors that are written; nan until `finish`.
        done: future of the thread that runs it.
        finished: whether the results are there.
    """

    where: str
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    done: "Future[None]" = field(default_factory=Future)
    finished: bool = False

    def __post_init__(self) -> None:
        # Gloo's thread is in no inference mode, and may write no tensor of one.
        with torch.inference_mode(False):
            self.sent = [x.detach().clone() for x in self.inputs]
            self._before = [x.clone() for x in self.sent]
            shared = {id(x): copy for x, copy in zip(self.inputs, self.sent, strict=True)}
            self.received = [shared.get(id(x), x.detach().clone()) for x in self.outputs]
        for x in self.outputs:
            _poison(x)

    def finish(self) -> None:
        """Write the results, once the thread has run the call.

        Raises:
            Refused: it was refused, or its tensors were written meanwhile.
        """
        self.done.result()
        if self.finished:
            return
        self.finished = True
        # A part of its own output is what FSDP gathers: NCCL takes it as it lies there.
        written = {x.untyped_storage().data_ptr() for x in self.outputs}
        for x, before in zip(self.inputs, self._before, strict=True):
            if x.untyped_storage().data_ptr() not in written and _is_there(x) and not _same(x, before):
                raise Refused(
                    f"{self.where}: what it sends was written before wait, while another stream reads it"
                )
        for x, received in zip(self.outputs, self.received, strict=True):
            if not _is_there(x):
                continue
            if not _is_poison(x):
                raise Refused(
                    f"{self.where}: its result was written before wait, while another stream writes it"
                )
            with torch.inference_mode(x.is_inference()):
                x.data.copy_(received)
        # Copies live no longer than the call.
        self.inputs, self.outputs, self.sent, self.received, self._before = [], [], [], [], []


class Pending(dist.Work):
    """The handle of calls that were issued: the results exist behind `wait`.

    Args:
        finish: finishes these calls, and all that the group issued before.
        calls: the calls.
    """

    def __init__(self, finish: Callable[[Sequence[Call]], None], calls: Sequence[Call]) -> None:
        super().__init__()
        self._finish, self._calls = finish, calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._finish(self._calls)
        return True

    def is_completed(self) -> bool:
        if not all(call.done.done() for call in self._calls):
            return False
        self._finish(self._calls)
        return True

    def is_success(self) -> bool:
        return self.is_completed()

    def get_future(self) -> Any:
        raise NotImplementedError("a strict group gives no futures: wait for the work")


def _is_there(x: torch.Tensor) -> bool:
    """Return whether a tensor's memory still exists: FSDP frees what it has sent."""
    return x.untyped_storage().size() >= x.numel() * x.element_size()


def _poison(x: torch.Tensor) -> None:
    # Through `.data`, which leaves the version alone: autograd would take it for a change of its own.
    with torch.inference_mode(x.is_inference()):
        x.data.fill_(_poison_of(x.dtype))


def _poison_of(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return True
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max - 5


def _is_poison(x: torch.Tensor) -> bool:
    values = x.data
    return bool((values.isnan() if x.dtype.is_floating_point else values == _poison_of(x.dtype)).all())


def _same(x: torch.Tensor, before: torch.Tensor) -> bool:
    return torch.equal(x.data.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))
