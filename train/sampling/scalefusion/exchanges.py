"""Asynchronous all-to-alls: in the background of a CPU, on a communication stream of a GPU."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

Finish = Callable[[], None]
"""Wait for an exchange; on a GPU the current stream waits, not the process."""


class Exchanges(Protocol):
    """All-to-alls of one group, executed in the order of their launches."""

    group: dist.ProcessGroup

    def start(
        self,
        pack: Callable[[], torch.Tensor],
        received: torch.Tensor,
        send: Sequence[int],
        receive: Sequence[int],
    ) -> Finish:
        """Start an exchange of rows.

        Args:
            pack: returns the rows for each rank in turn, [N, ...]; called once.
            received: contiguous tensor for the rows from each rank in turn.
            send: number of rows for each rank.
            receive: number of rows from each rank.
        """


class AsyncExchanges:
    """Exchanges that overlap computation.

    On a GPU packing and sending run on a stream of their own, which first waits for what was computed so far; so
    two send buffers are never alive at a time. What is sent and received stays referenced until its exchange is
    waited for, since the allocator knows only the stream of computation.

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
        self,
        pack: Callable[[], torch.Tensor],
        received: torch.Tensor,
        send: Sequence[int],
        receive: Sequence[int],
    ) -> Finish:
        if self.stream is None:
            rows = pack()
            work = self._launch(rows, received, send, receive)

            def finish() -> None:
                nonlocal rows
                work.wait()
                del rows

            return finish
        computed = torch.cuda.current_stream(received.device)
        self.stream.wait_stream(computed)
        with torch.cuda.stream(self.stream):
            # This wait is the stream's: it frees the rows for what the stream packs next.
            self._launch(pack(), received, send, receive).wait()
            arrived = self.stream.record_event()
        kept: list[object] = [pack, received]

        def finish_on_stream() -> None:
            torch.cuda.current_stream(received.device).wait_event(arrived)
            kept.clear()

        return finish_on_stream

    def _launch(
        self, rows: torch.Tensor, received: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> dist.Work:
        work = dist.all_to_all_single(
            received, rows, list(receive), list(send), group=self.group, async_op=True
        )
        assert work is not None  # this process is one of the group
        return work
