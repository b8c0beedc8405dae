"""Comparison of latents that must be the same bits on all ranks."""

import torch
import torch.distributed as dist

from reelweave.loader.errors import RunError
from reelweave.train.distributed.world import World
from reelweave.train.parallel.context.exchange import gather

_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2^64 over the golden ratio, odd


def check_same(x: torch.Tensor, world: World, what: str) -> None:
    """Compare a tensor's bits over all ranks; a collective of 8 bytes a rank.

    Args:
        x: tensor of any float type.
        world: ranks that must have the same.
        what: its name, for the error.

    Raises:
        RunError: they differ; on every rank.
    """
    if world.size == 1:
        return
    fingerprints = gather_by_rank(fingerprint(x), world).tolist()
    if len(set(fingerprints)) == 1:
        return
    first = fingerprints[0]
    differing = ", ".join(str(rank) for rank, bits in enumerate(fingerprints) if bits != first)
    raise RunError(
        f"ranks differ in {what} (other bits than rank 0: rank {differing}), so that they would make different videos;"
        " they need the same checkpoint, prompt and seed, and GPUs and libraries of one kind"
    )


def gather_by_rank(x: torch.Tensor, world: World) -> torch.Tensor:
    """Return a tensor of all ranks, stacked by rank."""
    if world.size == 1:
        return x[None]
    group = world.group or dist.group.WORLD
    assert group is not None  # there are several ranks
    return gather(x[None], [1] * world.size, group, dim=0)


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """Return a hash of a tensor's bits, an int64 scalar: a sum over odd multiples, which no single change leaves."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    bits_N = x.detach().contiguous().flatten().view(kind).to(torch.int64)
    place_N = torch.arange(bits_N.numel(), device=x.device, dtype=torch.int64)
    return (bits_N * (2 * place_N + 1) * _ODD).sum()
