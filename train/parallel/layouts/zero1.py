"""ZeRO-1: weights and gradients on every rank, sharded optimizer state.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5.1.
Ranks synchronize once per step and may run any microbatches in any order in between.
"""

import math
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from reelweave.train.config.parts import Dtype, LayoutConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layouts.parallel_model import ParallelModel
from reelweave.train.parallel.layouts.ready_buckets import ReadyBuckets
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.step.buckets import fill_buckets

# Bounds the buffers of a collective: 256 MiB of float32.
BUCKET_VALUES = 1 << 26
_IN_FLIGHT = 2


class ZeRO1(ParallelModel):
    """ZeRO-1: each rank updates its rows of every weight, in float32 or wider, and all-gathers them.

    With bfloat16, matrices are bfloat16 while the optimizer's rows and all gradients are float32. Rows are
    split as by `torch.chunk`.
    """

    def __init__(self, bundle: Bundle, config: LayoutConfig, ranks: Ranks) -> None:
        self._parameters = bundle.trained_weights()
        self._sharing, self._replicas = ranks.along("dp_shard", *CONTEXT), ranks.along("dp_replicate")
        mesh = ranks.weights["dp_replicate", "dp_shard"]
        wholes, narrowed = {}, narrowed_names(bundle, config.dtype)
        for name, parameter in self._parameters.items():
            rows = parameter.detach()[self._rows(parameter)]
            sharded = DTensor.from_local(
                # A view would keep all rows in memory.
                rows.to(_exact(parameter), copy=name in narrowed),
                mesh,
                (Replicate(), Shard(0)),
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            wholes[name] = nn.Parameter(sharded)
            hold_(parameter, name in narrowed)
        super().__init__(bundle, config, ranks, wholes)
        # A backward completes the last layers first; updated weights are needed from the first on.
        sizes = [(name, parameter.dtype, parameter.numel()) for name, parameter in self._parameters.items()]
        self._gathered = fill_buckets(sizes, BUCKET_VALUES)
        self._reduced = fill_buckets(sizes[::-1], BUCKET_VALUES)
        self._scattering: deque[tuple[list[str], dist.Work, torch.Tensor, torch.Tensor]] = deque()
        self._summing: list[tuple[list[str], dist.Work, torch.Tensor]] = []
        self._ready = ReadyBuckets(
            [[self._parameters[name] for name in bucket] for bucket in self._reduced], self._begin
        )

    def share(self) -> None:
        """Make the replicas of each shard equal, and gather parameters from shards."""
        self._replicas.broadcast_(list(self.weights.values()))
        self.refresh()

    def zero_gradients(self) -> None:
        """Zero all gradients at the begin of a step."""
        for parameter in self._parameters.values():
            self._total(parameter).zero_()

    def before_backward(self, last: bool) -> None:
        if last:
            self._ready.arm()

    def sum_gradients(self) -> None:
        """Finish the reduce-scatter of gradients, so that each rank has its rows' sums."""
        self._ready.finish()
        while self._scattering:
            self._settle()
        for bucket, work, own_N in self._summing:
            work.wait()
            self._spread(bucket, own_N)
        self._summing.clear()
        self._sum_over_model_ranks()

    def _begin(self, index: int) -> None:
        """Begin to reduce-scatter a bucket; only as many are in flight as bound the copies of their gradients."""
        if len(self._scattering) == _IN_FLIGHT:
            self._settle()
        size, bucket = self._sharing.size, self._reduced[index]
        sent_WN = torch.cat([_chunks(self._total(self._parameters[name]), size) for name in bucket], dim=1)
        own_N = sent_WN.new_empty(sent_WN.shape[1])
        sent = sent_WN.flatten()
        work = dist.reduce_scatter_tensor(own_N, sent, group=self._sharing.group, async_op=True)
        self._scattering.append((bucket, _begin_work(work), sent, own_N))

    def _settle(self) -> None:
        """Finish the oldest reduce-scatter, and begin the sum of its result over replicas."""
        bucket, work, _, own_N = self._scattering.popleft()
        work.wait()
        if self._replicas.size == 1:
            self._spread(bucket, own_N)
            return
        work = dist.all_reduce(own_N, group=self._replicas.group, async_op=True)
        self._summing.append((bucket, _begin_work(work), own_N))

    def _spread(self, bucket: list[str], own_N: torch.Tensor) -> None:
        counts = [_chunk(self._parameters[name], self._sharing.size) for name in bucket]
        for name, part in zip(bucket, torch.split(own_N, counts), strict=True):
            gradient = self._gradient(name)
            gradient.copy_(part[: gradient.numel()].view_as(gradient))

    def _summed_whole(self) -> list[str]:
        return []

    @torch.no_grad()
    def refresh(self) -> None:
        """All-gather the parameters from the rows of all ranks."""
        size = self._sharing.size
        for bucket in self._gathered:
            parameters = [self._parameters[name] for name in bucket]
            counts = [_chunk(parameter, size) for parameter in parameters]
            own_N = parameters[0].new_zeros(sum(counts))
            for name, part in zip(bucket, torch.split(own_N, counts), strict=True):
                weight = self.weights[name]
                part[: weight.numel()].copy_(weight.flatten())
            all_WN = own_N.new_empty(size, len(own_N))
            dist.all_gather_into_tensor(all_WN.view(-1), own_N, group=self._sharing.group)
            for parameter, part_Wn in zip(parameters, torch.split(all_WN, counts, dim=1), strict=True):
                parameter.copy_(part_Wn.flatten()[: parameter.numel()].view_as(parameter))

    def _rows(self, parameter: torch.Tensor) -> slice:
        """Return this rank's rows."""
        rows = -(-len(parameter) // self._sharing.size)
        return slice(self._sharing.rank * rows, (self._sharing.rank + 1) * rows)

    @staticmethod
    def _total(parameter: nn.Parameter) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad


def _begin_work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is in the group"
    return work


def narrowed_names(bundle: Bundle, dtype: Dtype) -> set[str]:
    """Return the names of the trained parameters that all ranks hold in bfloat16: matrices that run in it."""
    exact = {id(parameter) for parameter in bundle.dit.float32_parameters()}
    return {
        name
        for name, parameter in bundle.trained_weights().items()
        if dtype == "bfloat16" and parameter.ndim > 1 and id(parameter) not in exact
    }


def hold_(parameter: nn.Parameter, narrowed: bool) -> None:
    """Give a parameter a gradient of zeros, in the dtype of the update; cast it to bfloat16 if it is ``narrowed``."""
    exact = _exact(parameter)
    if narrowed:
        parameter.data = parameter.data.bfloat16()
    # Gradients accumulate in the dtype of the update.
    parameter.grad_dtype = exact
    parameter.grad = torch.zeros_like(parameter, dtype=exact)


def _exact(parameter: torch.Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _chunk(tensor: torch.Tensor, ranks: int) -> int:
    """Return the number of values in the largest shard."""
    return -(-len(tensor) // ranks) * math.prod(tensor.shape[1:])


def _chunks(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the shards zero-padded to the largest, [ranks, values]."""
    values = _chunk(tensor, ranks)
    return F.pad(tensor.flatten(), (0, ranks * values - tensor.numel())).view(ranks, values)
