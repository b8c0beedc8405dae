"""Lease on a run's folder, so that only one run at a time writes checkpoints and metrics there."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from reelweave.loader.storage import Storage, hold_lease
from reelweave.loader.storage.leases.fenced import Fence, FencedStorage
from reelweave.loader.storage.leases.file_lease import NoLocksError
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World

_log = logging.getLogger(__name__)


@contextmanager
def alone(world: World, storages: Sequence[Storage], command: str) -> Iterator[list[Storage]]:
    """Hold the leases of a run's places; rank 0 takes them and the others receive the result. A collective.

    Args:
        world: all ranks.
        storages: folder of the run, and the separate place of its checkpoints, if any.
        command: command line, shown to later runs that are refused.

    Yields:
        The places, whose writes check on every rank that the lease is still held.

    Raises:
        RunError: another run holds one; on every rank.
    """
    with ExitStack() as stack:
        ids = on_first(world, lambda: [_take_lease(stack, storage, command) for storage in storages])
        fences = zip(storages, ids, strict=True)
        yield [
            storage if name == _NONE else FencedStorage(storage, Fence(storage, name))
            for storage, name in fences
        ]


_NONE = "-"


def _take_lease(stack: ExitStack, storage: Storage, command: str) -> str:
    """Take a lease, and return the name of its holder."""
    try:
        held = stack.enter_context(hold_lease(storage, command))
    except NoLocksError as error:  # scratch file systems often lack locks, and training does not need them
        _log.warning("%s", error)
        return _NONE
    assert isinstance(held, FencedStorage)
    return held.fence.holder_id
