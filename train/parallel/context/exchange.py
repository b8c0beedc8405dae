"""Differentiable token exchanges within a context-parallel group.

All gradients follow one contract: the objective is the sum over ranks of each rank's result, and each backward
is the exact adjoint of its forward under that sum. See docs/parallel.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor


def exchange_rows(
    x_NK: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Send adjacent rows of ``x`` to each rank by one all-to-all; received rows are ordered by rank.

    Args:
        x_NK: rows with any number of trailing dimensions.
        send: number of rows for each rank; N is their sum.
        receive: number of rows from each rank.
        group: the ranks.

    Returns:
        The received rows, [sum of ``receive``, K].
    """
    rows: torch.Tensor = _ExchangeRows.apply(x_NK, list(send), list(receive), group)
    return rows


def gather(x: torch.Tensor, lengths: Sequence[int], group: dist.ProcessGroup, dim: int = 1) -> torch.Tensor:
    """Concatenate the parts of all ranks along ``dim``, on every rank.

    Backward sums all ranks' gradients for a part and returns them to its owner. A loss that every rank computes
    from the whole result therefore counts once per rank: divide it by their number, or let each rank compute
    its share.

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


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NK: torch.Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchanged(x_NK, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.receive, ctx.send, ctx.group), None, None, None


def _exchanged(
    x_NK: torch.Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
) -> torch.Tensor:
    x_NK = x_NK.contiguous()
    if torch.compiler.is_compiling():
        # Traced by PyTorch 2.11, the collective that fills a given tensor leaves zeros for the gradient.
        rows: torch.Tensor = wait_tensor(all_to_all_single(x_NK, receive, send, group))  # type: ignore[no-untyped-call]
        return rows
    rows = x_NK.new_empty((sum(receive), *x_NK.shape[1:]))
    dist.all_to_all_single(rows, x_NK, receive, send, group=group)
    return rows
