"""Gradients in flat buffers, summed over ranks in place while the backward still runs."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from reelweave.train.distributed.world import World
from reelweave.train.parallel.layouts.ready_buckets import ReadyBuckets
from reelweave.train.step.buckets import fill_buckets

BUCKET_VALUES = 1 << 24
"""Values of a bucket: 64 MiB of float32."""
_ALIGNED = 16  # values: vectorized kernels need aligned gradients


class GradientBuckets:
    """Gradients of replicated weights, as views of flat buffers that ranks sum without a copy.

    Args:
        weights: local tensors that hold the gradients, by name.
        parameters: parameters of the model that the weights belong to, by the same names.
        ranks: ranks that hold the same weights.
        max_values: number of values of a buffer.

    Attributes:
        buffers: all gradients, in buffers of one dtype; none for one rank.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        parameters: Mapping[str, nn.Parameter],
        ranks: World,
        max_values: int = BUCKET_VALUES,
    ) -> None:
        self._ranks = ranks
        self._works: list[dist.Work] = []
        self.buffers: list[torch.Tensor] = []
        # A backward completes the last layers first.
        names = list(weights)[::-1] if ranks.size > 1 else []
        gradients = {name: _gradient(weights[name]) for name in names}
        sizes = [(name, gradient.dtype, _room(gradient)) for name, gradient in gradients.items()]
        buckets = fill_buckets(sizes, max_values)
        for bucket in buckets:
            bucket_grads = [gradients.pop(name) for name in bucket]
            buffer = torch.cat(
                [
                    nn.functional.pad(gradient.flatten(), (0, _room(gradient) - gradient.numel()))
                    for gradient in bucket_grads
                ]
            )
            for name, part in zip(
                bucket, torch.split(buffer, [_room(gradient) for gradient in bucket_grads]), strict=True
            ):
                weight = weights[name]
                weight.grad = part[: weight.numel()].view(weight.shape)
            self.buffers.append(buffer)
        self.ready = ReadyBuckets([[parameters[name] for name in bucket] for bucket in buckets], self._begin)

    def sum_(self) -> None:
        """Replace the gradients by their sums over the ranks, of which the last backward may have begun some."""
        self.ready.finish()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _begin(self, index: int) -> None:
        work = dist.all_reduce(self.buffers[index], group=self._ranks.group, async_op=True)
        assert work is not None, "this rank is in the group"
        self._works.append(work)


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() // _ALIGNED) * _ALIGNED
