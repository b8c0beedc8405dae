"""The three ways in which ranks of a context-parallel group exchange tokens, with their gradients.

All gradients follow one contract: the objective is the sum over ranks of what each of them computes, and each
operation is the exact adjoint of its forward under that sum. See docs/parallel.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


def exchange_rows(
    x_NK: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """One all-to-all: adjacent rows of ``x`` go to each rank in turn; what comes lies in the order of the ranks.

    Args:
        x_NK: any number of dimensions behind the rows.
        send: rows for each rank; N is their sum.
        receive: rows from each rank.
        group: the ranks.

    Returns:
        the rows received, [sum of ``receive``, K].
    """
    rows: torch.Tensor = _ExchangeRows.apply(x_NK, list(send), list(receive), group)
    return rows


def gather(x: torch.Tensor, lengths: Sequence[int], group: dist.ProcessGroup, dim: int = 1) -> torch.Tensor:
    """The parts of all ranks along ``dim``, end to end, on every rank.

    Backward sums the gradients that all ranks have for a part, and gives them to its owner. A loss that every
    rank computes from the whole result therefore counts once per rank: divide it by their number, or let each
    rank take its share of it.

    Args:
        x: this rank's part.
        lengths: how long each rank's part is along ``dim``.
        group: the ranks.
        dim: the dimension that is cut.
    """
    size = dist.get_world_size(group)
    if size == 1:
        return x
    rows = x.movedim(dim, 0)
    # An all-gather of parts of any lengths, whose adjoint is a reduce-scatter summed in the order of the ranks.
    copies = rows.expand(size, *rows.shape).flatten(0, 1)
    return exchange_rows(copies, [len(rows)] * size, lengths, group).movedim(0, dim)


@dataclass(frozen=True)
class Hop:
    """A tensor on its way to the next rank of a ring, and another on its way here from the rank before."""

    sent: torch.Tensor
    received: torch.Tensor
    works: Sequence[dist.Work]

    def wait(self) -> torch.Tensor:
        """What came from the rank before; what was sent may be overwritten from now on."""
        for work in self.works:
            work.wait()
        return self.received


def hop(x: torch.Tensor, shape: Sequence[int], group: dist.ProcessGroup) -> Hop:
    """Starts to send ``x`` to the next rank of the ring and to receive from the one before; not differentiable.

    Args:
        x: contiguous; must not change before `Hop.wait`.
        shape: of what comes, in the type of ``x``.
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
        rows = x_NK.new_empty((sum(receive), *x_NK.shape[1:]))
        dist.all_to_all_single(rows, x_NK.contiguous(), receive, send, group=group)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return exchange_rows(gradients[0], ctx.receive, ctx.send, ctx.group), None, None, None
