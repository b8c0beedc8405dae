"""Gloo groups whose ranks connect when they first exchange a message.

Gloo otherwise connects every rank with every other one when a group is made: N - 1 sockets of each of N ranks, above
the usual limit of 1,024 open files from there on. Connected lazily, a rank holds one socket that listens, and one for
each of its partners.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

BACKEND = "lazy_gloo"


def lazy_group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """Make a group of ranks for messages between their CPUs; a collective of all processes."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _backend, devices=["cpu"])
    make: Any = dist.new_group
    group: dist.ProcessGroup = make(list(ranks), backend=BACKEND)
    return group


def _backend(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_default_device(lazy_init=True)]
    return gloo(store, rank, size, options)
