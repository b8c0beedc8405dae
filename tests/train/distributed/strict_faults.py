"""Programs of two ranks, each with one fault that gloo does not mind and NCCL does."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from reelweave.train.distributed.world import World, join
from tests.strict_group import in_step

DEVICE = torch.device("cpu")


def right(world: World) -> None:
    """Every kind of call, as NCCL wants it."""
    x = torch.ones(4, device=DEVICE) * (world.rank + 1)
    work: Any = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.tolist() == [3.0] * 4
    whole = torch.empty(8, device=DEVICE)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    assert x.tolist() == [6.0] * 4
    received = torch.empty(3, device=DEVICE)
    dist.all_to_all_single(received[: 1 + world.rank * 2], x[:2], *_splits(world.rank))
    parts = [torch.empty(4, device=DEVICE) for _ in range(2)]
    dist.all_gather(parts, x)
    dist.broadcast(x, src=1)
    other = 1 - world.rank
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, parts[0], other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if world.rank:
        dist.send(x, 0)
    else:
        dist.recv(x, 1)


def _splits(rank: int) -> tuple[list[int], list[int]]:
    return ([1, 2], [0, 2]) if rank else ([1, 0], [1, 1])


def host_tensor(world: World) -> None:
    x = torch.tensor([1.0, 2.0]) + 1
    dist.all_reduce(x)


def strided(world: World) -> None:
    dist.all_reduce(torch.ones(4, 4, device=DEVICE).t())


def unequal(world: World) -> None:
    dist.all_reduce(torch.ones(4 + world.rank, device=DEVICE))


def unequal_splits(world: World) -> None:
    x = torch.ones(4, device=DEVICE)
    splits = [3, 1] if world.rank else [2, 2]
    dist.all_to_all_single(torch.empty(4, device=DEVICE), x, splits, [2, 2])


def dtypes(world: World) -> None:
    dist.all_reduce(torch.ones(4, device=DEVICE, dtype=torch.int32 if world.rank else torch.float32))


def order(world: World) -> None:
    x = torch.ones(4, device=DEVICE)
    if world.rank:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


def order_of_groups(world: World) -> None:
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (other, one) if world.rank else (one, other):
        dist.all_reduce(torch.ones(4, device=DEVICE), group=group)


def lone_send(world: World) -> None:
    if world.rank == 0:
        work: Any = dist.isend(torch.ones(4, device=DEVICE), 1)
        work.wait()


def opposite_sends(world: World) -> None:
    x, other = torch.ones(4, device=DEVICE), 1 - world.rank
    work: Any = dist.isend(x, other)
    dist.recv(torch.empty(4, device=DEVICE), other)
    work.wait()


def unwaited(world: World) -> None:
    dist.all_reduce(torch.ones(4, device=DEVICE), async_op=True)


def read_early(world: World) -> None:
    x = torch.ones(4, device=DEVICE)
    work: Any = dist.all_reduce(x, async_op=True)
    early = x.sum()
    work.wait()
    assert early == 8, f"read before wait: {early}"


def written_early(world: World) -> None:
    x, whole = torch.ones(4, device=DEVICE), torch.empty(8, device=DEVICE)
    work: Any = dist.all_gather_into_tensor(whole, x, async_op=True)
    x += 1
    work.wait()


def objects(world: World) -> None:
    dist.broadcast_object_list([1], src=0)
    with in_step():
        dist.broadcast_object_list([1], src=0)


def first_use(world: World) -> None:
    with in_step():
        dist.all_reduce(torch.ones(4, device=DEVICE))


def new_group(world: World) -> None:
    with in_step():
        dist.new_group([0, 1])


def first_pair(world: World) -> None:
    dist.all_reduce(torch.ones(4, device=DEVICE))
    with in_step():
        first = dist.send if world.rank == 0 else dist.recv
        first(torch.ones(4, device=DEVICE), 1 - world.rank)


def barrier(world: World) -> None:
    dist.barrier()


FAULTS: dict[str, Callable[[World], None]] = {
    each.__name__: each
    for each in (
        host_tensor,
        strided,
        unequal,
        unequal_splits,
        dtypes,
        order,
        order_of_groups,
        lone_send,
        opposite_sends,
        unwaited,
        read_early,
        written_early,
        objects,
        first_use,
        new_group,
        first_pair,
        barrier,
    )
}


def run(name: str) -> None:
    """A rank."""
    with join("cpu") as world:
        (FAULTS | {"right": right})[name](world)
