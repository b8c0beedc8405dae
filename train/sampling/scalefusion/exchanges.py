"""Asynchronous all-to-alls: in the background of a CPU, on a communication stream of a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

Finish = Callable[[], None]
"""Wait for an exchange; on a GPU the current stream waits, not the process."""


class Exchanges(Protocol):
    """All-to-alls of one group, executed in the order of their launches."""

    group: dist.ProcessGroup

    def start(
        self, rows: torch.Tensor, received: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> Finish:
        """Start an exchange of rows, which no one changes before it is waited for.

        Args:
            rows: contiguous rows for each rank in turn.
            received: contiguous tensor for the rows from each rank in turn.
            send: number of rows for each rank.
            receive: number of rows from each rank.
        """


class AsyncExchanges:
    """Exchanges that overlap computation.

    On a GPU they run on a stream of their own, which first waits for what was computed so far. Both tensors stay
    referenced until the exchange is waited for, since the allocator knows only the stream of computation.

    Args:
        group: the ranks.
        device: device of the tokens.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(
        self, rows: torch.Tensor, received: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> Finish:
        if self.stream is None:
            return _Pending([rows, received], self._launch(rows, received, send, receive).wait)
        device = received.device
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self._launch(rows, received, send, receive).wait()  # the stream waits, not this process
            arrived = self.stream.record_event()
        return _Pending([rows, received], lambda: torch.cuda.current_stream(device).wait_event(arrived))

    def _launch(
        self, rows: torch.Tensor, received: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> dist.Work:
        work = dist.all_to_all_single(
            received, rows, list(receive), list(send), group=self.group, async_op=True
        )
        assert work is not None  # this process is one of the group
        return work


@dataclass(eq=False)
class _Pending:
    """Exchange under way, with what must stay in memory until it is waited for."""

    buffers: list[torch.Tensor]
    wait: Callable[[], object]

    def __call__(self) -> None:
        self.wait()
        self.buffers.clear()
