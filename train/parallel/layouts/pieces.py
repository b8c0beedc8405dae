"""What a rank holds of a tensor: a plain one that optimizers and kernels take, and its place in the whole."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from train.distributed.world import World
from train.parallel.fp8 import unwrapped


def local(parameter: nn.Parameter) -> nn.Parameter:
    """This rank's piece of a parameter, in the same memory; the parameter itself where it is whole."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(unwrapped(parameter.to_local()).detach())


def placed(piece: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A rank's piece of a tensor that lies like ``whole``, as a part of it, in the same memory."""
    if not isinstance(whole, DTensor):
        return piece
    return DTensor.from_local(
        piece.detach(),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def parts(whole: torch.Tensor) -> int:
    """How many pieces a tensor is in; each of them may lie on several ranks."""
    if not isinstance(whole, DTensor):
        return 1
    sizes = whole.device_mesh.shape
    return math.prod(
        size for size, how in zip(sizes, whole.placements, strict=True) if not how.is_replicate()
    )


def gathered(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The whole tensors, by name; a collective where they are in pieces."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }


def copy_(target: torch.Tensor, whole: torch.Tensor) -> None:
    """Copies a whole tensor into one that may be in pieces; not a collective."""
    if isinstance(target, DTensor):
        whole = distribute_tensor(
            whole.to(target.device), target.device_mesh, target.placements, src_data_rank=None
        )
    target.copy_(whole)


def norm(pieces: Iterable[tuple[torch.Tensor, int]], ranks: World) -> torch.Tensor:
    """The 2-norm of tensors in pieces, the same on every rank, float64.

    Args:
        pieces: of this rank, and on how many of the ranks each lies.
        ranks: that hold all of them.
    """
    squares = [
        torch.linalg.vector_norm(piece, dtype=torch.float64).square() / copies for piece, copies in pieces
    ]
    total = torch.stack(squares).sum()
    ranks.sum_([total])
    return total.sqrt()
