"""Where a rank's microbatches come from, and which of them make a step."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from loader.batch import Microbatch, Pack, UpcomingMicrobatch
from loader.buckets.cost import Cost
from loader.errors import RunError
from train.measure.timings import StepClock


class Stream(Protocol):
    """Iterable of a rank's microbatches (`loader.stream.video_stream.VideoStream`)."""

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        """Goes on from the state."""

    def state_dict(self) -> Mapping[str, Any]:
        """JSON values, the same on every rank, from which a stream goes on behind the last microbatch."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the state."""

    @property
    def cost(self) -> Cost:
        """What microbatches are planned with."""

    def recalibrate(self, cost: Cost) -> bool:
        """Plans what a new iterator yields with another cost; False where that is not possible now."""


@runtime_checkable
class Foreseeing(Protocol):
    """A stream that knows what comes."""

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        """What all ranks are about to read in the next step, rank after rank, the same on every rank; None: unknown."""


def batches_of_step(
    batches: Iterator[Microbatch | Pack], step: int, total_steps: int, clock: StepClock
) -> Iterator[Microbatch | Pack]:
    """This rank's part of a step.

    Raises:
        RunError: there is none left.
    """
    while True:
        with clock.part("data"):
            batch = next(batches, None)
        if batch is None:
            raise RunError(f"the stream ended before step {step} of schedule.total_steps={total_steps}")
        yield batch
        if batch.ends_step:
            return
