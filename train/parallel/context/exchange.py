"""Differentiable token exchanges within a context-parallel group.

All gradients follow one contract: the objective is the sum over ranks of each rank's result. Each backward is
the exact adjoint of its forward under that sum. See docs/parallel.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor


class Transfer(NamedTuple):
    """Rows of one tensor for all ranks.

    Attributes:
        rows: rows with any number of trailing dimensions, [N, K].
        send: number of adjacent rows for each rank; N is their sum.
        receive: number of rows from each rank.
    """

    rows: torch.Tensor
    send: Sequence[int]
    receive: Sequence[int]


def exchange(transfers: Sequence[Transfer], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Send rows of tensors to each rank by one all-to-all each; while one travels, the next is copied for its own.

    Returns:
        The received rows of each tensor, ordered by rank, [sum of ``receive``, K].
    """
    counts = [(list(transfer.send), list(transfer.receive)) for transfer in transfers]
    received = _Exchange.apply(counts, group, *(transfer.rows for transfer in transfers))
    return list(received)


def exchange_rows(
    x_NK: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Exchange the rows of one tensor, as `exchange`."""
    return exchange([Transfer(x_NK, send, receive)], group)[0]


def gather(x: torch.Tensor, lengths: Sequence[int], group: dist.ProcessGroup, dim: int = 1) -> torch.Tensor:
    """Concatenate the parts of all ranks along ``dim``, on every rank.

    Backward sums all ranks' gradients for a part and returns them to its owner. A loss that every rank
    computes from the whole result therefore counts once per rank. Divide it by their number, or let each rank
    compute its share.

    Args:
        x: this rank's part.
        lengths: length of each rank's part along ``dim``.
        group: the ranks.
        dim: sharded dimension.
    """
    size = dist.get_world_size(group)
    if size == 1:
        return x
    rows = x.movedim(dim, 0)
    # An all-gather of unequal parts; its adjoint is a reduce-scatter summed in rank order.
    copies = rows.expand(size, *rows.shape).flatten(0, 1)
    return exchange_rows(copies, [len(rows)] * size, lengths, group).movedim(0, dim)


@dataclass(frozen=True)
class Hop:
    """Pending exchange with both neighbours on a ring."""

    sent: torch.Tensor
    received: torch.Tensor
    works: Sequence[dist.Work]

    def wait(self) -> torch.Tensor:
        """Wait and return the received tensor; the sent one may be overwritten afterwards."""
        for work in self.works:
            work.wait()
        return self.received


def hop(x: torch.Tensor, shape: Sequence[int], group: dist.ProcessGroup) -> Hop:
    """Start to send ``x`` to the next rank of the ring and to receive from the previous; not differentiable.

    Args:
        x: contiguous tensor that must not change before `Hop.wait`.
        shape: shape of the received tensor, in the dtype of ``x``.
        group: the ring.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    received = x.new_empty(shape)
    operations = [
        dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size),
    ]
    return Hop(x, received, dist.batch_isend_irecv(operations))


Counts = list[tuple[list[int], list[int]]]
"""Numbers of rows that are sent to each rank, and received from it, of each tensor."""


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, counts: Counts, group: dist.ProcessGroup, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.counts, ctx.group = counts, group
        return _exchange_tensors(tensors, counts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = [(receive, send) for send, receive in ctx.counts]
        return None, None, *_exchange_tensors(gradients, back, ctx.group)


def _exchange_tensors(
    tensors: Sequence[torch.Tensor], counts: Counts, group: dist.ProcessGroup
) -> tuple[torch.Tensor, ...]:
    if torch.compiler.is_compiling():
        # Traced by PyTorch 2.11, the collective that fills a given tensor leaves zeros for the gradient.
        pending = [
            all_to_all_single(x_NK.contiguous(), receive, send, group)
            for x_NK, (send, receive) in zip(tensors, counts, strict=True)
        ]
        return tuple(wait_tensor(rows) for rows in pending)  # type: ignore[no-untyped-call]
    received, works = [], []
    for x, (send, receive) in zip(tensors, counts, strict=True):
        x_NK = x.contiguous()
        rows = x_NK.new_empty((sum(receive), *x_NK.shape[1:]))
        works.append((x_NK, dist.all_to_all_single(rows, x_NK, receive, send, group=group, async_op=True)))
        received.append(rows)
    for _, work in works:
        assert work is not None  # this process is one of the group
        work.wait()
    return tuple(received)
