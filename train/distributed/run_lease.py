"""Lease on a run's folder, so that only one run at a time writes checkpoints and metrics there."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from loader.errors import RunError
from loader.storage import Storage, leased
from loader.storage.leases.fenced import Fence, FencedStorage
from loader.storage.leases.file_lease import NoLocksError
from train.distributed.world import World

_log = logging.getLogger(__name__)


@contextmanager
def alone(world: World, places: Sequence[Storage], command: str) -> Iterator[list[Storage]]:
    """Hold the leases of a run's places; rank 0 takes them and the others receive the result. A collective.

    Args:
        world: all ranks.
        places: folder of the run, and the separate place of its checkpoints, if any.
        command: command line, shown to later runs that are refused.

    Yields:
        The places, whose writes check on every rank that the lease is still held.

    Raises:
        RunError: another run holds one; on every rank.
    """
    with ExitStack() as stack:
        ids: list[str] = []
        refusal = ""
        try:
            for place in places if world.rank == 0 else ():
                ids.append(_taken(stack, place, command))
        except RunError as error:
            refusal = str(error)
        refused, told = (world.gather_text(text)[0] for text in (refusal, " ".join(ids)))
        if refused:
            raise RunError(refused)
        fences = zip(places, told.split(), strict=True)
        yield [place if name == _NONE else FencedStorage(place, Fence(place, name)) for place, name in fences]


_NONE = "-"


def _taken(stack: ExitStack, place: Storage, command: str) -> str:
    """Take a lease, and return the name of its holder."""
    try:
        held = stack.enter_context(leased(place, command))
    except NoLocksError as error:  # scratch file systems often lack locks, and training does not need them
        _log.warning("%s", error)
        return _NONE
    assert isinstance(held, FencedStorage)
    return held.fence.holder_id
