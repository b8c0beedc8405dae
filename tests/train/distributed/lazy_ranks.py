"""Ranks that exchange messages in a ring, and count their sockets; they import no model."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.distributed.lazy_gloo import lazy_group
from train.distributed.world import join


def message_ring(out: str, partners: int, lazy: bool) -> None:
    """Each rank sends a number to the ranks behind it; the sockets that the group added are written down."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0
    )
    dist.init_process_group("gloo", store=dist.PrefixStore("world", store), rank=rank, world_size=size)
    before = sockets()
    make: Any = dist.new_group
    group = lazy_group(range(size)) if lazy else make(list(range(size)), backend="gloo")
    made = sockets() - before
    for step in range(1, partners + 1):
        got = torch.zeros(3)
        receipt = dist.irecv(got, group=group, group_src=(rank - step) % size, tag=step)
        dist.isend(
            torch.full((3,), float(rank)), group=group, group_dst=(rank + step) % size, tag=step
        ).wait()
        receipt.wait()
        assert got.tolist() == [float((rank - step) % size)] * 3
    Path(out, f"{rank}.json").write_text(json.dumps([made, sockets() - before]))
    store.set(f"done-{rank}", "")
    store.wait([f"done-{other}" for other in range(size)])  # none is gone before all have counted
    if rank:
        store.set(f"gone-{rank}", "")
    else:  # which holds the store
        store.wait([f"gone-{other}" for other in range(1, size)])


def lost_partner(out: str, victim: int) -> None:
    """A rank that waits for a message of one that has ended, to which it was never connected."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu", lost_after_s=4.0) as world:
        group = lazy_group(range(size))
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == (victim + 1) % size:
            dist.irecv(torch.zeros(3), group=group, group_src=victim, tag=1).wait()
        else:
            world.barrier()


def sockets() -> int:
    """Return the number of this process's open sockets."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            found += str(path.readlink()).startswith("socket:")
    return found
