"""ZeRO-1: weights and gradients on every rank, sharded optimizer state.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5.1.
Ranks synchronize once per step and may run any microbatches in any order in between.
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from train.config.run import TrainConfig
from train.models.bundle import Bundle
from train.parallel.layouts.parallel_model import ParallelModel
from train.parallel.mesh import Ranks
from train.parallel.rank_grid import CONTEXT

# Bounds the buffers of a collective: 256 MiB of float32.
BUCKET_VALUES = 1 << 26


class ZeRO1(ParallelModel):
    """ZeRO-1: each rank updates its rows of every weight, in float32 or wider, and all-gathers them.

    With bfloat16, matrices are bfloat16 while the optimizer's rows and all gradients are float32. Rows are
    split as by `torch.chunk`.
    """

    def __init__(self, bundle: Bundle, config: TrainConfig, ranks: Ranks) -> None:
        self._parameters = bundle.trained()
        self._sharing, self._replicas = ranks.along("dp_shard", *CONTEXT), ranks.along("dp_replicate")
        mesh = ranks.weights["dp_replicate", "dp_shard"]
        wholes = {}
        for name, parameter in self._parameters.items():
            rows = parameter.detach()[self._rows(parameter)]
            whole = DTensor.from_local(
                # A view would keep all rows in memory.
                rows.to(_exact(parameter), copy=_is_narrowed(parameter, config)),
                mesh,
                (Replicate(), Shard(0)),
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            wholes[name] = nn.Parameter(whole)
            hold_(parameter, config)
        super().__init__(bundle, config, ranks, wholes)

    def share(self) -> None:
        """Make the replicas of each shard equal, and gather parameters from shards."""
        self._replicas.broadcast_(list(self.weights.values()))
        self.refresh()

    def zero_gradients(self) -> None:
        """Zero all gradients at the begin of a step."""
        for parameter in self._parameters.values():
            self._total(parameter).zero_()

    def sum_gradients(self) -> None:
        """Reduce-scatter gradients, so that each rank has its rows' sums."""
        size = self._sharing.size
        for bucket in self._buckets():
            totals = [self._total(self._parameters[name]) for name in bucket]
            sent_WN = torch.cat([_chunks(total, size) for total in totals], dim=1)
            own_N = sent_WN.new_empty(sent_WN.shape[1])
            dist.reduce_scatter_tensor(own_N, sent_WN.flatten(), group=self._sharing.group)
            self._replicas.sum_([own_N])
            for name, part in zip(
                bucket, torch.split(own_N, [_chunk(total, size) for total in totals]), strict=True
            ):
                gradient = self._gradient(name)
                gradient.copy_(part[: gradient.numel()].view_as(gradient))
        self._sum_over_model_ranks()

    @torch.no_grad()
    def refresh(self) -> None:
        """All-gather the parameters from the rows of all ranks."""
        size = self._sharing.size
        for bucket in self._buckets():
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

    def _buckets(self) -> Iterator[list[str]]:
        """Yield names of parameters of one dtype that share a collective."""
        for dtype in {parameter.dtype: None for parameter in self._parameters.values()}:
            bucket: list[str] = []
            values = 0
            for name, parameter in self._parameters.items():
                if parameter.dtype == dtype:
                    if bucket and values + parameter.numel() > BUCKET_VALUES:
                        yield bucket
                        bucket, values = [], 0
                    bucket.append(name)
                    values += parameter.numel()
            yield bucket

    @staticmethod
    def _total(parameter: nn.Parameter) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad


def hold_(parameter: nn.Parameter, config: TrainConfig) -> None:
    """Cast a parameter to the dtype in which all ranks hold it, with a gradient of zeros."""
    exact = _exact(parameter)
    if _is_narrowed(parameter, config):
        parameter.data = parameter.data.bfloat16()
    # Gradients accumulate in the dtype of the update.
    parameter.grad_dtype = exact
    parameter.grad = torch.zeros_like(parameter, dtype=exact)


def _exact(parameter: torch.Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _is_narrowed(parameter: torch.Tensor, config: TrainConfig) -> bool:
    return config.dtype == "bfloat16" and parameter.ndim > 1


def _chunk(tensor: torch.Tensor, ranks: int) -> int:
    """Return the number of values in the largest shard."""
    return -(-len(tensor) // ranks) * math.prod(tensor.shape[1:])


def _chunks(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the shards zero-padded to the largest, [ranks, values]."""
    values = _chunk(tensor, ranks)
    return F.pad(tensor.flatten(), (0, ranks * values - tensor.numel())).view(ranks, values)
