"""Base of loaders whose pass is one epoch of a stream, and whose state stands behind what they yielded."""

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Literal, NoReturn, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reelweave.loader.base.argument_types import check_type, whole_number
from reelweave.loader.batch import Batch, Microbatch, Pack, Step
from reelweave.loader.errors import NoAttributeError, UsageError
from reelweave.loader.read.share import NO_WORKERS
from reelweave.loader.stream.stream_iterator import StreamIterator
from reelweave.loader.stream.video_stream import VideoStream, refuse_sharding

Start = Literal["fork", "spawn", "forkserver"]
Item = TypeVar("Item", Step, Microbatch | Pack)

_log = logging.getLogger(__name__)


class EpochLoader(IterableDataset[Any], Generic[Item]):
    """Items of one rank; one pass is one epoch, or the rest of one. A pass that was left continues with the next item.

    Args:
        stream: stream of this rank.
        processes: number of worker processes that read and decode; 0 uses threads of this process.
        start: start method of worker processes; None is the platform's default.
        repeats: True for evaluation: every pass begins where the stream stands now, with the same samples and frames.

    Raises:
        UsageError: an argument has a wrong type, or worker processes were requested for a stream that ranks
            read together.
    """

    def __init__(
        self, stream: VideoStream, processes: int = 0, start: Start | None = None, repeats: bool = False
    ) -> None:
        check_type(stream, VideoStream, "stream", "give a VideoStream, such as VideoStream(dataset, config)")
        processes = whole_number(processes, "processes", "give the number of worker processes, 0 for none")
        if processes < 0:
            raise UsageError(f"processes is {processes}; give the number of worker processes, 0 for none")
        if processes and stream.share is not None:
            raise UsageError(NO_WORKERS)
        self.stream = stream
        self._begins_at = stream.cursor.position if repeats else None
        self._loader: DataLoader[Microbatch | Pack] | None = None
        if processes:
            pin = stream.config.pin_memory and torch.cuda.is_available()
            self._loader = DataLoader(
                stream,
                batch_size=None,
                num_workers=processes,
                multiprocessing_context=start,
                pin_memory=pin,
            )
        self._batches: Any = None  # iterator of the stream or of the DataLoader
        self._held: Item | None = None
        self._moves = 0
        self._last_length: int | None = None  # that somebody asked for

    @abstractmethod
    def _next_item(self) -> Item | None:
        """Return the next item of `_read`, None at the end of the stream."""

    @abstractmethod
    def _last_batch(self, item: Item) -> Batch:
        """Return the batch of an item behind which the stream continues."""

    @abstractmethod
    def _count_items(self) -> int:
        """Return the number of items of the epoch that a pass begins or continues."""

    def _yielded(self, item: Item) -> Any:
        return item

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UsageError(
                f"a {type(self).__name__} is a loader: iterate over it, or put it into a DataLoader with num_workers=0;"
                f" it has worker processes of its own, {type(self).__name__}(stream, processes=n)"
            )
        cursor, done = self.stream.cursor, None
        if self._begins_at is not None:
            cursor.move(self._begins_at)
        if self._moves != cursor.moves:
            self.close()  # the stream was moved, so prefetched batches are stale
        if self.stream.is_over(cursor.position):
            return
        while (item := self._held or self._next()) is not None:
            self._held = None
            if done is not None and item.epoch != done.epoch:
                self._held = item
                self._advance_behind(done)
                return
            self._advance_behind(item)
            yield self._yielded(item)
            done = item

    def __len__(self) -> int:
        """Return the number of items of the epoch that a pass begins or continues, finished ones included."""
        self._last_length = self._count_items()
        return self._last_length

    @property
    def generator(self) -> NoReturn:
        """Refuse Accelerate's wrapping of a prepared DataLoader (`VideoStream.generator`)."""
        refuse_sharding()

    @property
    def dataset(self) -> NoReturn:
        """Refuse what skips batches of a loader anew, as `accelerate.skip_first_batches` does with this attribute.

        Raises:
            NoAttributeError: always.
        """
        raise NoAttributeError(
            f"a {type(self).__name__} has no dataset to begin anew from: its state knows which batches are done, and"
            " skipping them would leave out as many again. Leave out skip_first_batches, and with transformers'"
            " Trainer set ignore_data_skip=True; the state comes by load_state_dict"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state behind the last yielded item; within a step, the step's beginning."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state (`VideoStream.load_state_dict`).

        Rank 0 logs a warning if the epoch has more items with this state than `len` said before, as on more ranks:
        loops that asked before may end before the epoch does.
        """
        before = self._last_length
        self.stream.load_state_dict(state)
        if before is None or self.stream.rank or (now := self._count_items()) <= before:
            return
        _log.warning(
            "the epoch that this state continues has %d items, steps on other ranks included; before it was loaded,"
            " len(loader) was %d. A loop that ends by that number leaves out the last %d: load the state first, or"
            " end by a number of steps (max_steps)",
            now,
            before,
            now - before,
        )

    def close(self) -> None:
        """Stop threads or worker processes that prefetch; the next pass starts new ones."""
        if isinstance(self._batches, StreamIterator):
            self._batches.close()
        elif self._batches is not None:
            cursor = self.stream.cursor
            cursor.move(cursor.position, cursor.taken)  # of what was read ahead nothing was used
        self._batches, self._held = None, None

    def _read(self) -> Iterator[Microbatch | Pack]:
        """Return the iterator of all batches to come."""
        if self._batches is None:
            self._batches = iter(self.stream) if self._loader is None else iter(self._loader)
        batches: Iterator[Microbatch | Pack] = self._batches
        return batches

    def _next(self) -> Item | None:
        try:
            return self._next_item()
        except BaseException:
            self.close()
            raise

    def _advance_behind(self, item: Item) -> None:
        self.stream.advance(self._last_batch(item))
        self._moves = self.stream.cursor.moves
