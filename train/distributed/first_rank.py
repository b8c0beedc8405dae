"""Work of the first rank alone, with its result or its error on all ranks."""

import json
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.distributed.world import World

_ERRORS = (UsageError, RunError)


def is_first_process() -> bool:
    """Return whether this process is the first of its run, or alone; for what is said once."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def on_first(world: World, work: Callable[[], Any]) -> Any:
    """Return on all ranks what ``work`` returns on the first, a JSON value. A collective.

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
    reply = json.loads(world.gather_text(message)[0])
    if failure is not None:
        raise failure
    if "kind" in reply:
        raise _ERRORS[reply["kind"]](reply["said"])
    return reply["made"]
