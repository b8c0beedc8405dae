"""One pass over a stream in one process."""

import weakref
from collections.abc import Callable, Generator
from typing import Any, Self

from torch.utils.data import get_worker_info

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import Position
from reelweave.loader.stream.cursor.loader_state import IteratorState, read_iterator_state
from reelweave.loader.stream.cursor.position_tracker import PassStart
from reelweave.loader.stream.cursor.stream_cursor import StreamCursor

ReadFrom = Callable[[Position, int], Generator[Microbatch | Pack, None, None]]
"""Reads this process's microbatches from a position on, the first ones of its step left out."""


class StreamIterator:
    """One pass over a stream in one process; it begins when a batch or its state is first requested.

    Its state, saved by torchdata's StatefulDataLoader, is exact to the microbatch, and valid for the same worker of
    equally many.

    Args:
        cursor: position of the stream, which the pass moves; in a worker process the stream moves its own.
        read: reader of the microbatches.
    """

    def __init__(self, cursor: StreamCursor, read: ReadFrom) -> None:
        worker = get_worker_info()
        self._cursor, self._read = cursor, read
        self._worker, self._workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._batches: Generator[Microbatch | Pack, None, None] | None = None
        self._start: PassStart | UsageError | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Microbatch | Pack:
        start, cursor = self._begin_pass(), self._cursor
        if self._batches is None:
            self._batches = self._read(start.position, start.first)
            # Also runs at the interpreter's exit, while the modules of its threads still exist.
            weakref.finalize(self, self._batches.close)
        elif get_worker_info() is None and cursor.position != start.position:
            raise UsageError(
                "the stream was moved since this iterator's last batch, or another iterator reads it, so batches would"
                " come twice: go on with a new one, iter(stream)"
            )
        batch = next(self._batches)
        if get_worker_info() is None:
            cursor.move(batch.after)
        else:
            cursor.check_followed(start.move)
        # Counted from the stream's new position; the microbatches in between belong to other workers.
        first = self._workers - 1 if batch.ends_step else batch.slot + self._workers
        self._start = PassStart(batch.after, first, start.move)
        return batch

    def close(self) -> None:
        """Stop the prefetching threads."""
        if self._batches is not None:
            self._batches.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last microbatch, also within a step."""
        start = self._begin_pass()
        return IteratorState(
            stream=self._cursor.state(start.position),
            rank=self._cursor.rank,
            worker=self._worker,
            workers=self._workers,
            next=start.first,
        ).model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of the same worker out of equally many.

        Raises:
            UsageError: the state belongs to another worker, rank or plan.
        """
        self._start = self._cursor.resume(read_iterator_state(state), self._worker, self._workers)
        self._batches = None

    def _begin_pass(self) -> PassStart:
        if self._start is None:
            try:
                self._start = self._cursor.begin()
            except UsageError as error:
                self._start = error  # kept, because the stream may be moved for another pass
        if isinstance(self._start, UsageError):
            raise self._start
        return self._start
