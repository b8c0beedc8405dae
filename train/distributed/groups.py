"""Process groups of a run, made with its timeout and connected before its first step.

NCCL connects a communicator to another rank at their first message. In a step that takes seconds and memory that no
plan has seen, while all ranks wait. So each group names its first messages, and `Groups.connect` sends them, of one
number each, in the order in which all ranks created the groups.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from reelweave.train.distributed.communicator_memory import all_to_all_bytes, ring_bytes

Connect = Callable[[dist.ProcessGroup, torch.device], None]
"""First messages of a group."""


def by_sum(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect ranks as their sums and gathers do: by a ring or a tree."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def to_all(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect every pair of ranks, as an all-to-all does, and all by a sum."""
    by_sum(group, device)
    x = torch.zeros(dist.get_world_size(group), device=device)
    dist.all_to_all_single(torch.empty_like(x), x, group=group)


def around(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect each rank to both neighbours on a ring, and all by a sum."""
    by_sum(group, device)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return
    x = torch.zeros(1, device=device)
    operations = [
        dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, torch.empty_like(x), group=group, group_peer=(rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def onward(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect each rank to the next one, from the first to the last."""
    _pass(group, device, 1)


def backward(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect each rank to the one before it, from the last to the first."""
    _pass(group, device, -1)


def _pass(group: dist.ProcessGroup, device: torch.device, step: int) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = torch.zeros(1, device=device)
    if 0 <= rank - step < size:
        dist.recv(x, group=group, group_src=rank - step)
    if 0 <= rank + step < size:
        dist.send(x, group=group, group_dst=rank + step)


class Groups:
    """Process groups that this rank is in, in the order in which all ranks made them.

    Args:
        device: compute device of this rank.
        timeout: time after which a collective that does not end is an error; None: PyTorch's.
    """

    def __init__(self, device: torch.device, timeout: timedelta | None) -> None:
        self._device, self._timeout = device, timeout
        self._made: list[tuple[dist.ProcessGroup, Connect]] = []
        self._connected = 0

    def divide(self, ranks: list[list[int]], connect: Connect = by_sum) -> dist.ProcessGroup:
        """Return this rank's of new groups that partition all ranks; a collective of all processes.

        Args:
            ranks: ranks of each group.
            connect: first messages of each.
        """
        make: Any = dist.new_subgroups_by_enumeration
        group: dist.ProcessGroup = make(ranks, timeout=self._timeout)[0]
        self._made.append((group, connect))
        return group

    def exchange_in(self, group: dist.ProcessGroup) -> None:
        """Have every pair of ranks of a group connected, which exchanges among all of them."""
        self._made = [(each, to_all if each is group else connect) for each, connect in self._made]

    @property
    def most_bytes(self) -> int:
        """Memory of the communicators of all groups so far, and of all processes, at most; an estimate."""
        everyone = ring_bytes(dist.get_world_size()) if dist.is_initialized() else 0
        return everyone + sum(
            (all_to_all_bytes if connect is to_all else ring_bytes)(dist.get_world_size(group))
            for group, connect in self._made
        )

    def connect(self) -> int:
        """Connect the groups that are not connected yet; a collective of all processes.

        Returns:
            Number of groups of several ranks, so far.
        """
        for group, connect in self._made[self._connected :]:
            connect(group, self._device)
        self._connected = len(self._made)
        return sum(dist.get_world_size(group) > 1 for group, _ in self._made)
