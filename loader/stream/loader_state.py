"""States of readings to the microbatch, as loaders of torchdata keep them.

`torchdata.stateful_dataloader.StatefulDataLoader` saves one state for each of its worker processes, and by itself goes
on with as many only. Taken together they say where the loader stood, so that a stream goes on with any number.
"""

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from loader.errors import UsageError


class IteratorState(BaseModel, frozen=True, extra="forbid", strict=True):
    """Where the reading of one process stands.

    Attributes:
        stream: state of the stream at the beginning of a step.
        rank: data-parallel rank.
        worker: number of the process.
        workers: processes that read in turns; 1 where there are no others.
        next: microbatch that the process reads next, counted from the beginning of that step.
    """

    stream: dict[str, Any]
    rank: NonNegativeInt
    worker: NonNegativeInt
    workers: PositiveInt
    next: NonNegativeInt


class LoaderPosition(NamedTuple):
    """Where a loader stood.

    Attributes:
        stream: state of the stream at the beginning of a step.
        rank: data-parallel rank.
        used: microbatches that were used of that step.
        more: microbatches that were used after those, in this step and later ones.
    """

    stream: dict[str, Any]
    rank: int
    used: int
    more: int


def read_iterator_state(state: dict[str, Any]) -> IteratorState:
    """Check what one process saved.

    Raises:
        UsageError: it is no such state.
    """
    try:
        return IteratorState.model_validate(state)
    except ValidationError as error:
        raise UsageError(f"not the state of a stream's reading: {_problem(error)}") from error


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Fetcher(_Lenient):
    dataset_iter_state: IteratorState


class _Worker(_Lenient):
    fetcher_state: _Fetcher


class _Snapshot(_Lenient):
    last_yielded: NonNegativeInt = Field(alias="_last_yielded_worker_id")
    workers: dict[str, _Worker] = Field(alias="_worker_snapshots")


class _Loader(_Lenient):
    """A loader's state with worker processes, or without any."""

    snapshot: _Snapshot | None = Field(default=None, alias="_snapshot")
    more: NonNegativeInt = Field(default=0, alias="_steps_since_snapshot")
    fetcher: _Fetcher | None = Field(default=None, alias="fetcher_state")


def is_loader_state(state: dict[str, Any]) -> bool:
    """Tell whether a state is that of a StatefulDataLoader."""
    return "_snapshot" in state or "fetcher_state" in state


def read_loader_state(state: dict[str, Any]) -> LoaderPosition:
    """Find where a StatefulDataLoader stood.

    Raises:
        UsageError: what was saved is not the state of one around a stream.
    """
    try:
        loader = _Loader.model_validate(state)
        if loader.snapshot is None:
            if loader.fetcher is None:
                raise ValueError("it holds no state of the stream")
            last, count = loader.fetcher.dataset_iter_state, 1
        else:
            own, count = loader.snapshot.workers, len(loader.snapshot.workers)
            last = own[f"worker_{loader.snapshot.last_yielded}"].fetcher_state.dataset_iter_state
        if last.workers != count:
            raise ValueError(f"it holds states of {count} worker processes out of {last.workers}")
    except (ValidationError, ValueError, KeyError) as error:
        raise UsageError(
            f"not the state of a StatefulDataLoader around a stream: {_problem(error)}; save loader.state_dict() or"
            " stream.state_after(batch)"
        ) from error
    return LoaderPosition(last.stream, last.rank, last.next - count + 1, loader.more)


def _problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
