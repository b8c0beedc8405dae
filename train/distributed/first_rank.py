"""Work of the first rank alone, with its result or its error on all ranks."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.distributed.heartbeat import names_lost
from reelweave.train.distributed.world import World

_ERRORS = (UsageError, RunError)
_SHORTEST_S, _LONGEST_S = 0.002, 0.5
"""Pauses between looks at the store: short at first; then a thousand ranks ask it 2,000 times a second."""


def is_first_process() -> bool:
    """Return whether this process is the first of its run, or alone; for what is said once."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def on_first(world: World, work: Callable[[], Any]) -> Any:
    """Return on all ranks what ``work`` returns on the first, a JSON value. A collective.

    The work may take hours, as over slow storage: where there is a store the others wait in it, and not in a collective
    that a watchdog ends.

    Raises:
        UsageError: the work raised it; on all ranks, so that none says that another was lost.
        RunError: likewise.
    """
    failure, message = None, ""
    if world.rank == 0:
        try:
            message = json.dumps({"made": work()})
        except _ERRORS as error:
            failure = error
            message = json.dumps({"kind": int(isinstance(error, RunError)), "said": str(error)})
    reply = json.loads(_from_first(world, message, failed=failure is not None))
    if failure is not None:
        raise failure
    if "kind" in reply:
        raise _ERRORS[reply["kind"]](reply["said"])
    return reply["made"]


def _from_first(world: World, message: str, failed: bool) -> str:
    """Return the first rank's message; if its work failed, every rank ends as soon as it has the message."""
    store = world.store
    if store is None or world.size == 1:
        return world.gather_text(message)[0]
    key = f"first/{store.add(f'first/calls/{world.rank}', 1)}"
    if world.rank == 0:
        store.set(key, message)
        # The store may end with this process, which so waits until all others have the message. Those that have the
        # failure of its work end by it, and are no sign; a lost one ends this process by its heartbeat.
        _wait(store, lambda: store.add(f"{key}/read", 0) == world.size - 1, heeds_lost=not failed)
        return message
    _wait(store, lambda: store.check([key]))
    message = str(store.get(key), "utf-8")
    store.add(f"{key}/read", 1)
    return message


def _wait(store: Store, over: Callable[[], bool], heeds_lost: bool = True) -> None:
    """Look at the store until what other ranks do is over.

    Raises:
        RuntimeError: a rank was lost.
    """
    pause_s = _SHORTEST_S
    while not over():
        if heeds_lost and names_lost(store):
            raise RuntimeError("a rank was lost while others waited for the first one")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)
