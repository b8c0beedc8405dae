"""Shards of tensors: plain tensors for optimizers and kernels, and their placement in the whole."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from reelweave.train.checkpoint.pieces import piece_of
from reelweave.train.distributed.world import World
from reelweave.train.parallel.fp8 import unwrap_shard


def local(parameter: nn.Parameter) -> nn.Parameter:
    """Return this rank's shard of a parameter in the same memory; the parameter itself if it is whole."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(unwrap_shard(parameter.to_local()).detach())


def place_piece(piece: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return a shard as part of a tensor placed like ``reference``, in the same memory.

    Its rows may have another shape than those of a ``reference`` that is divided by rows.
    """
    if not isinstance(reference, DTensor):
        return piece
    shape, stride = reference.shape, reference.stride()
    if piece.shape != reference.to_local().shape:
        shape, stride = torch.Size([len(reference), *piece.shape[1:]]), piece.stride()
    return DTensor.from_local(
        piece.detach(),
        reference.device_mesh,
        reference.placements,
        run_check=False,
        shape=shape,
        stride=stride,
    )


def parts(tensor: torch.Tensor) -> int:
    """Return the number of distinct shards of a tensor; each may be replicated."""
    if not isinstance(tensor, DTensor):
        return 1
    sizes = tensor.device_mesh.shape
    return math.prod(
        size for size, how in zip(sizes, tensor.placements, strict=True) if not how.is_replicate()
    )


def gather_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return whole tensors by name; a collective if they are sharded."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }


def copy_(target: torch.Tensor, full: torch.Tensor) -> None:
    """Copy a whole tensor into a possibly sharded one, whose part alone is read; not a collective."""
    if isinstance(target, DTensor):
        piece = piece_of("", "", target)
        full = full[
            tuple(slice(begin, begin + size) for begin, size in zip(piece.offsets, piece.sizes, strict=True))
        ]
        target = unwrap_shard(target.to_local())
    target.copy_(full)


def norm(pieces: Iterable[tuple[torch.Tensor, int]], ranks: World) -> torch.Tensor:
    """Return the 2-norm of sharded tensors, the same on every rank, float64.

    Args:
        pieces: shards on this rank, each with its number of replicas.
        ranks: ranks that hold all shards.
    """
    squares = [
        torch.linalg.vector_norm(piece, dtype=torch.float64).square() / copies for piece, copies in pieces
    ]
    total = torch.stack(squares).sum()
    ranks.sum_([total])
    return total.sqrt()
