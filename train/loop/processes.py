"""The processes of a run and the signals that stop it, entered once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.interrupt import Interrupt, interrupts
from reelweave.train.models.attention.backend import attention_backend
from reelweave.train.parallel.mesh import Ranks


class Processes(NamedTuple):
    """The ranks of a run, as one of them sees them.

    Attributes:
        ranks: Grid of all ranks; its process groups are made at first use and shared by loader and trainer.
        interrupt: Stop signals that this rank has received since it entered.
    """

    ranks: Ranks
    interrupt: Interrupt


@contextmanager
def enter(config: TrainConfig | VaeTrainConfig) -> Iterator[Processes]:
    """Join the other ranks of a run and catch stop signals.

    Raises:
        UsageError: There is no such device, or the degrees of parallelism do not fit the number of ranks.
        RunError: Another rank was lost.
    """
    # Signals are caught first: none may end a rank that is about to report a lost one.
    watch = config.lost_after_s, config.collective_timeout_s
    with interrupts() as interrupt, join(config.device, *watch) as world:
        ranks = Ranks.of(config.parallel, world)
        with attention_backend(config.parallel.attention, config.model, config.dtype, world.device):
            yield Processes(ranks, interrupt)
