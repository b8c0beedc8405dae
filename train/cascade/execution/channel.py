"""Asynchronous point-to-point messages between ranks, separate from collectives.

Arachne, section IV-D: a side stream copies results to host memory and Gloo transfers them. The compute stream
continues and the network of the collectives stays free.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist

from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.packing import empty, pack_tensors, unpack_tensors


class PendingSend(NamedTuple):
    """Send that is still in progress.

    Attributes:
        posted: future of the transfer; ready once the message has left the device.
    """

    posted: "Future[dist.Work]"

    def done(self) -> bool:
        """Return True once the message has arrived."""
        return self.posted.done() and self.posted.result().is_completed()

    def wait(self) -> None:
        """Block until the message has arrived."""
        self.posted.result().wait()


class PendingReceive(NamedTuple):
    """Receive that is still in progress."""

    message: torch.Tensor
    parts: Sequence[TensorSpec]
    transfer: dist.Work

    def wait(self, device: torch.device) -> list[torch.Tensor]:
        """Block until the message is here and return its tensors on the device."""
        self.transfer.wait()
        return unpack_tensors(self.message.to(device, non_blocking=True), self.parts)


class Channel:
    """Point-to-point endpoint of one rank.

    Args:
        group: Gloo group of all ranks.
        device: compute device of this rank.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        make: Any = torch.cuda.Stream
        self._aside: torch.cuda.Stream | None = make(device) if device.type == "cuda" else None
        # This thread waits for the copy to the host, so that the cascades' thread need not.
        self._sender = ThreadPoolExecutor(1, "handoffs")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._sender.shutdown()

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int) -> PendingSend:
        """Send tensors asynchronously; they must not change until they have arrived."""
        message, copied = pack_tensors(tensors), None
        if self._aside is not None and message.is_cuda:
            host = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
            self._aside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._aside):
                host.copy_(message, non_blocking=True)
                copied = self._aside.record_event()
            message.record_stream(self._aside)
            message = host
        return PendingSend(self._sender.submit(self._post, message, to, tag, copied))

    def expect(self, parts: Sequence[TensorSpec], source: int, tag: int) -> PendingReceive:
        """Allocate a buffer and post the receive."""
        message = empty(parts, torch.device("cpu"), pinned=self._aside is not None)
        transfer = dist.irecv(message, group=self._group, group_src=source, tag=tag)
        assert transfer is not None
        return PendingReceive(message, parts, transfer)

    def _post(self, message: torch.Tensor, to: int, tag: int, copied: torch.cuda.Event | None) -> dist.Work:
        if copied is not None:
            copied.synchronize()
        transfer = dist.isend(message, group=self._group, group_dst=to, tag=tag)
        assert transfer is not None
        return transfer
