"""The message of a step: sums over all ranks of losses, stop signals, checkpoint progress and times."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

from reelweave.loader.batch import ReadCounts
from reelweave.train.checkpoint.saver import SaveProgress
from reelweave.train.distributed.world import World
from reelweave.train.measure.step_times import ClockSums
from reelweave.train.step.step_losses import LossSums


@dataclass(frozen=True)
class StepMessage:
    """One rank's numbers of a step, or the sum of all ranks' numbers; both travel in one collective.

    Attributes:
        losses: Sums over the step's microbatches.
        stops: Number of ranks that were asked to stop.
        checkpoint: Progress of the checkpoint in flight.
        reads: Numbers of the stream's reads.
        clock: Seconds and peak memory.
    """

    losses: LossSums
    stops: float
    checkpoint: SaveProgress
    reads: ReadCounts
    clock: ClockSums

    def numbers(self) -> list[float]:
        """Return all fields as one row, equally long on every rank."""
        return [*self.losses, self.stops, *self.checkpoint, *self.reads, *self.clock.numbers()]

    @classmethod
    def from_numbers(cls, flat: Sequence[float]) -> Self:
        """Return the message whose `flat` these are."""
        rest = iter(flat)
        losses = LossSums(*islice(rest, len(LossSums._fields)))
        stops = next(rest)
        checkpoint = SaveProgress(*islice(rest, len(SaveProgress._fields)))
        reads = ReadCounts(*(round(count) for count in islice(rest, len(ReadCounts._fields))))
        return cls(losses, stops, checkpoint, reads, ClockSums.from_numbers(list(rest)))

    def sum_ranks(self, world: World) -> Self:
        """Return the sum over all ranks; one collective."""
        return self.from_numbers(world.sums(self.numbers()))
