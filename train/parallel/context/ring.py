"""Ring attention: blocks of keys and values travel around the ranks, queries stay.

Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023. A block travels to the next rank while
this one attends to it. Attention patterns are known in advance, so that no mask is built or sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from reelweave.train.models.uncompiled import uncompiled
from reelweave.train.parallel.context.exchange import hop
from reelweave.train.parallel.context.local_attention import local_attention
from reelweave.train.parallel.context.lse import merge_

Rectangle = tuple[slice, slice]
"""Adjacent queries, and adjacent keys that all of them attend to."""


def rectangles(queries_n: Sequence[int], keys_n: Sequence[int]) -> list[Rectangle]:
    """Return the blocks of a pattern in which queries of a packed sample attend to its keys only.

    Args:
        queries_n: number of queries of each sample, 0 allowed.
        keys_n: number of keys of each sample.
    """
    starts = zip(accumulate(queries_n, initial=0), accumulate(keys_n, initial=0), strict=True)
    return [
        (slice(q, q + queries), slice(k, k + keys))
        for (q, k), queries, keys in zip(starts, queries_n, keys_n, strict=False)
        if queries and keys
    ]


@dataclass(frozen=True, eq=False)
class Ring:
    """Ring attention over P ranks.

    A query without any key gets 0.

    Attributes:
        group: the ranks.
        queries: number of local queries of each packed sample; a single entry for unpacked sequences.
        keys: number of keys in each rank's block, by sample.
    """

    group: dist.ProcessGroup
    queries: Sequence[int]
    keys: Sequence[Sequence[int]]

    # One graph break here instead of one at every hop.
    @uncompiled
    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        """Return the outputs of this rank's queries, [B, H, L, D].

        Args:
            q_BHLD: queries of this rank.
            k_BHMD: keys of this rank's block.
            v_BHMD: values of this rank's block.
        """
        y_BHLD: torch.Tensor = _RingAttention.apply(q_BHLD, k_BHMD, v_BHMD, self)
        return y_BHLD

    def blocks(self, kv_2BHMD: torch.Tensor) -> Iterator[tuple[torch.Tensor, list[Rectangle]]]:
        """Yield each rank's block as it arrives, the local one first, with its attention pattern.

        The next block is requested before the current one is yielded, and awaited afterwards: in between both
        are in memory.
        """
        for steps in range(self.size):
            coming = None
            if steps + 1 < self.size:
                coming = hop(kv_2BHMD, self.shape(kv_2BHMD, steps + 1), self.group)
            yield kv_2BHMD, rectangles(self.queries, self.keys[self.owner(steps)])
            if coming is not None:
                kv_2BHMD = coming.wait()

    @property
    def size(self) -> int:
        """Number of ranks on the ring."""
        return len(self.keys)

    def owner(self, steps: int) -> int:
        """Return the owner of the block that is here after some steps."""
        return (dist.get_rank(self.group) - steps) % self.size

    def shape(self, kv_2BHMD: torch.Tensor, steps: int) -> tuple[int, ...]:
        """Return the shape of the block that is here after some steps."""
        return (*kv_2BHMD.shape[:3], sum(self.keys[self.owner(steps)]), kv_2BHMD.shape[4])


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor, ring: Ring
    ) -> torch.Tensor:
        local = local_attention(q_BHLD)
        wide = torch.promote_types(q_BHLD.dtype, torch.float32)
        out_BHLD = q_BHLD.new_zeros(q_BHLD.shape, dtype=wide)
        lse_BHL = q_BHLD.new_full(q_BHLD.shape[:3], -torch.inf, dtype=wide)
        kv_2BHMD = torch.stack([k_BHMD, v_BHMD])
        for (k, v), spans in ring.blocks(kv_2BHMD):
            for rows, keys in spans:
                more, more_lse = local.forward(q_BHLD[:, :, rows], k[:, :, keys], v[:, :, keys])
                merge_(out_BHLD[:, :, rows], lse_BHL[:, :, rows], more, more_lse)
        y_BHLD = out_BHLD.to(q_BHLD.dtype)
        ctx.save_for_backward(q_BHLD, kv_2BHMD, y_BHLD, lse_BHL)
        ctx.ring = ring
        return y_BHLD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """Send blocks around as in forward, each followed by its gradient, to which every rank adds its share.

        The owner's share stays local: the travelling gradient starts at the rank after the owner and ends at
        the owner.
        """
        ring, dout_BHLD = ctx.ring, gradients[0].contiguous()
        q_BHLD, kv_2BHMD, y_BHLD, lse_BHL = ctx.saved_tensors
        local = local_attention(q_BHLD)
        dq_BHLD = q_BHLD.new_zeros(q_BHLD.shape, dtype=lse_BHL.dtype)
        local_grad, travelling = None, None
        for steps, ((k, v), spans) in enumerate(ring.blocks(kv_2BHMD)):
            dkv_2BHMD = torch.zeros(ring.shape(kv_2BHMD, steps), dtype=lse_BHL.dtype, device=k.device)
            for rows, keys in spans:
                dq, dk, dv = local.backward(
                    dout_BHLD[:, :, rows],
                    q_BHLD[:, :, rows],
                    k[:, :, keys],
                    v[:, :, keys],
                    y_BHLD[:, :, rows],
                    lse_BHL[:, :, rows],
                )
                dq_BHLD[:, :, rows] += dq
                dkv_2BHMD[0][:, :, keys] += dk
                dkv_2BHMD[1][:, :, keys] += dv
            if local_grad is None:
                local_grad = dkv_2BHMD
                continue
            if travelling is not None:
                dkv_2BHMD += travelling.wait()
            travelling = hop(dkv_2BHMD, ring.shape(kv_2BHMD, steps + 1), ring.group)
        assert local_grad is not None  # a ring has one rank at least
        if travelling is not None:
            local_grad += travelling.wait()
        return dq_BHLD.to(q_BHLD.dtype), *local_grad.to(q_BHLD.dtype), None
