"""A stream in whose steps free ranks run pieces of late ones, as a training loop reads it."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch.distributed.distributed_c10d import Store

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.stream.stealing.shared_steps import SharedStep, SharedSteps
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.loader.stream.video_stream import VideoStream


class StealingStream:
    """A rank's stream whose steps are shared with late ranks (`SharedSteps`), with the state and plans of the stream.

    Args:
        stream: this rank's stream, of the regime "step" and the policy "balanced".
        store: store of all ranks; a new one for each start of the processes.
        config: share and size of the pieces.

    Raises:
        UsageError: the stream has another regime or policy, or is read by a model-parallel group together.
    """

    def __init__(self, stream: VideoStream, store: Store, config: WorkStealingConfig) -> None:
        self._stream, self._steps = stream, SharedSteps(stream, store, config)

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        """Iterate over microbatches; which is the last one of a step is known from `iterate_steps` alone."""
        return chain.from_iterable(self._steps)

    def iterate_steps(self) -> Iterator[SharedStep]:
        """Iterate over steps; each ends where this rank finds no more to run."""
        return iter(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the stream, which stands behind the last whole step."""
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of a stream, with or without work stealing."""
        self._stream.load_state_dict(state)

    @property
    def cost(self) -> Cost:
        """Cost model that microbatches are planned with."""
        return self._stream.cost

    def recalibrate(self, cost: Cost) -> bool:
        """Plan the next iterator's steps with another cost, as `VideoStream.recalibrate` does."""
        return self._stream.recalibrate(cost)

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """All shapes that the stream may give."""
        return self._stream.shapes

    @property
    def plan_keys(self) -> dict[str, Any]:
        """Keys of the configuration that plans follow from."""
        return self._stream.plan_keys

    @property
    def dataset_names(self) -> list[str]:
        """Locations, revisions and sizes of the datasets."""
        return self._stream.dataset_names
