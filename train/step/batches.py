"""Streams of microbatches, and their split into steps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from reelweave.loader.batch import Microbatch, Pack, UpcomingMicrobatch
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.errors import RunError, UsageError
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle


class StreamEndError(RunError):
    """The stream ended before the last step of a run."""


class BatchStream(Protocol):
    """Stream of a rank's microbatches, one or more per optimizer step, such as `reelweave.loader.VideoStream`."""

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        """Iterate from the current state on."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return JSON values, the same on every rank, to resume after the last microbatch."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    @property
    def cost(self) -> Cost:
        """Cost model of step plans."""

    def recalibrate(self, cost: Cost) -> bool:
        """Plan the next iterator's steps with another cost; returns False if that is impossible now."""


@runtime_checkable
class SteppedStream(Protocol):
    """Stream that divides itself into steps, as one does that knows the last microbatch of a step too late."""

    def iterate_steps(self) -> Iterator[Iterable[Microbatch | Pack]]:
        """Iterate over steps from the current state on; each is iterated to its end before the next."""


@runtime_checkable
class LookaheadStream(Protocol):
    """Stream that announces its next step."""

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        """Return the next step's microbatches of all ranks, by rank and the same on every rank; None: unknown."""


@runtime_checkable
class ShapedStream(Protocol):
    """Stream that knows all shapes it may give."""

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """Shapes of its microbatches."""


@runtime_checkable
class PlannedStream(Protocol):
    """Stream that says which keys its plans follow from."""

    @property
    def plan_keys(self) -> dict[str, Any]:
        """Keys of the plans as JSON values."""

    @property
    def dataset_names(self) -> list[str]:
        """Location, revision and size of each dataset, as a refused resume names them."""


def plan_keys_of(stream: object) -> dict[str, Any] | None:
    """Return the keys that a stream's plans follow from; None if it does not say."""
    return stream.plan_keys if isinstance(stream, PlannedStream) else None


def dataset_names_of(stream: object) -> list[str]:
    """Return a stream's datasets in words; none if it does not say."""
    return stream.dataset_names if isinstance(stream, PlannedStream) else []


def check_shapes(stream: object, bundle: Bundle) -> None:
    """Check that a model takes every shape of a stream, before a run begins: a rare one would end it after hours.

    Args:
        stream: stream of the run; one that does not know its shapes is not checked.
        bundle: modules of the run.

    Raises:
        UsageError: a shape does not divide into latents and patches, or is beyond the model's positions.
    """
    for bucket in stream.shapes if isinstance(stream, ShapedStream) else ():
        try:
            latent = bundle.tokenizer.latent_size((bucket.frames, bucket.height, bucket.width))
            bundle.dit.grid(latent)
        except UsageError as error:
            raise UsageError(
                f"stream.buckets (frames, sizes; or those of a stage in stream.curriculum) has the shape {bucket}:"
                f" {error}"
            ) from error


class StepReader:
    """Reader of a stream's microbatches, step by step from its current state on."""

    def __init__(self, stream: BatchStream) -> None:
        self._steps = stream.iterate_steps() if isinstance(stream, SteppedStream) else None
        self._batches = iter(() if self._steps else stream)

    def read_step(self, step: int, total_steps: int, clock: StepClock) -> Iterator[Microbatch | Pack]:
        """Yield this rank's microbatches of the next step.

        Raises:
            StreamEndError: the stream has ended.
        """
        ended = StreamEndError(
            f"the stream ended before step {step} of schedule.total_steps={total_steps}: set"
            f" schedule.total_steps={step - 1}, or more stream.epochs; both go on from the last checkpoint, if"
            " one was written"
        )
        batches = self._batches_of_step(ended)
        while True:
            with clock.part("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _batches_of_step(self, ended: StreamEndError) -> Iterator[Microbatch | Pack]:
        if self._steps is not None:
            shared = next(self._steps, None)
            if shared is None:
                raise ended
            yield from shared
            return
        while (batch := next(self._batches, None)) is not None:
            yield batch
            if batch.ends_step:
                return
        raise ended
