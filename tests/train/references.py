"""What ranks compare themselves with, computed once between them instead of by every one of them."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch.distributed as dist


def divided(references: Mapping[Hashable, Callable[[], Any]]) -> dict[Hashable, Any]:
    """Call each function on one rank of the world; return all results on all ranks.

    Args:
        references: Functions that send nothing, in the same order on every rank.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    own = {name: make() for n, (name, make) in enumerate(references.items()) if n % size == rank}
    parts: list[Any] = [None] * size
    dist.all_gather_object(parts, own)
    return {name: found for part in parts for name, found in part.items()}
