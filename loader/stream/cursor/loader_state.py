"""States of stream iterators, and the states that torchdata's loaders save around them.

`torchdata.stateful_dataloader.StatefulDataLoader` saves one state per worker process and can resume only with the same
number of workers. Together these states give the loader's position, from which a stream resumes with any number.
"""

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from reelweave.loader.errors import UsageError


class IteratorState(BaseModel, frozen=True, extra="forbid", strict=True):
    """State of one process's iterator over a stream.

    Attributes:
        stream: state of the stream at the beginning of a step.
        rank: data-parallel rank.
        worker: number of the worker process.
        workers: number of worker processes that read in turns; 1 without workers.
        next: next microbatch of this process, counted from the beginning of that step.
    """

    stream: dict[str, Any]
    rank: NonNegativeInt
    worker: NonNegativeInt
    workers: PositiveInt
    next: NonNegativeInt


class LoaderPosition(NamedTuple):
    """Position of a saved loader.

    Attributes:
        stream: state of the stream at the beginning of a step.
        rank: data-parallel rank.
        used: number of microbatches used of that step.
        more: number of microbatches used after those, in this step and later ones.
    """

    stream: dict[str, Any]
    rank: int
    used: int
    more: int


def read_iterator_state(state: dict[str, Any]) -> IteratorState:
    """Validate the state of one process.

    Raises:
        UsageError: the value is no such state.
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


class _LoaderState(_Lenient):
    """State of a loader with or without worker processes."""

    snapshot: _Snapshot | None = Field(default=None, alias="_snapshot")
    more: NonNegativeInt = Field(default=0, alias="_steps_since_snapshot")
    fetcher: _Fetcher | None = Field(default=None, alias="fetcher_state")


def is_loader_state(state: dict[str, Any]) -> bool:
    """Return whether a state is that of a StatefulDataLoader."""
    return "_snapshot" in state or "fetcher_state" in state


def read_loader_state(state: dict[str, Any]) -> LoaderPosition:
    """Return the position of a StatefulDataLoader.

    Raises:
        UsageError: the value is no state of a StatefulDataLoader around a stream.
    """
    try:
        loader = _LoaderState.model_validate(state)
        if loader.snapshot is None:
            if loader.fetcher is None:
                raise ValueError("it holds no state of the stream")
            last, count = loader.fetcher.dataset_iter_state, 1
        else:
            worker_states, count = loader.snapshot.workers, len(loader.snapshot.workers)
            last = worker_states[f"worker_{loader.snapshot.last_yielded}"].fetcher_state.dataset_iter_state
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
