"""Tensor parallelism of linear layers: each rank has a shard of the matrix by rows or columns.

Weights are DTensors, which FSDP shards further and checkpoints reassemble; activations are plain tensors, as
kernels need.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional as F


def divide_outputs(layer: nn.Linear, mesh: DeviceMesh, gather: bool = False) -> None:
    """Shard a layer by outputs; each rank returns its shard, or all outputs if gathered."""
    _divide(layer, mesh, Shard(0), Shard(0), Replicate(), Replicate() if gather else Shard(-1))


def divide_inputs(layer: nn.Linear, mesh: DeviceMesh) -> None:
    """Shard a layer by inputs; the sum over ranks is returned on all."""
    _divide(layer, mesh, Shard(1), Replicate(), Shard(-1), Replicate())


def share_inputs(module: nn.Module, mesh: DeviceMesh) -> None:
    """Wrap the first two arguments of a module once for all its layers, so that their gradients are summed once."""

    def take(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, source, *rest = inputs
        shared = _wrap(x, mesh, Replicate())
        return (shared, shared if source is x else _wrap(source, mesh, Replicate()), *rest)

    module.register_forward_pre_hook(take)


def _divide(
    layer: nn.Linear,
    mesh: DeviceMesh,
    weight: Placement,
    bias: Placement,
    input_placement: Placement,
    output_placement: Placement,
) -> None:
    full_forward: Callable[[torch.Tensor], Any] = layer.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not x.numel():
            # DTensor cannot reshape empty tensors, and there is nothing to sum.
            parts = (x, layer.weight, layer.bias)
            return F.linear(*(part.to_local() if isinstance(part, DTensor) else part for part in parts))
        output = full_forward(_wrap(x, mesh, input_placement))
        # Wait for the sum, since kernels would read an unfinished tensor.
        local: torch.Tensor = output.redistribute(placements=[output_placement]).to_local()
        return local

    # Every rank has the whole weight, drawn from the run's seed.
    for name, placement in (("weight", weight), ("bias", bias)):
        part = distribute_tensor(getattr(layer, name), mesh, [placement], src_data_rank=None)
        layer.register_parameter(name, nn.Parameter(part))
    module: nn.Module = layer
    module.forward = forward


def _wrap(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [placement], run_check=False)
