"""Loader of whole optimizer steps, for training loops of other frameworks."""

from collections.abc import Iterator
from typing import Any, Literal, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reelweave.loader.base.argument_types import check_type, whole_number
from reelweave.loader.batch import Microbatch, Pack, Step
from reelweave.loader.errors import UsageError
from reelweave.loader.read.share import NO_WORKERS
from reelweave.loader.stream.stream_iterator import StreamIterator
from reelweave.loader.stream.video_stream import VideoStream, refuse_sharding


class StepLoader(IterableDataset[Step]):
    """Whole optimizer steps of one rank; one pass is one epoch, or the rest of one.

    All ranks have equally many steps. After each yielded step, the stream's position is behind that step, even if
    worker processes prefetch. A pass that was left continues with the next step.

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
        self,
        stream: VideoStream,
        processes: int = 0,
        start: Literal["fork", "spawn", "forkserver"] | None = None,
        repeats: bool = False,
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
        self._held: Step | None = None
        self._moves = 0

    def __iter__(self) -> Iterator[Step]:
        if get_worker_info() is not None:
            raise UsageError(
                "a StepLoader is a loader: iterate over it, or put it into a DataLoader with num_workers=0; it has"
                " worker processes of its own, StepLoader(stream, processes=n)"
            )
        cursor, done = self.stream.cursor, None
        if self._begins_at is not None:
            cursor.move(self._begins_at)
        if self._moves != cursor.moves:
            self.close()  # the stream was moved, so prefetched batches are stale
        if self.stream.is_over(cursor.position):
            return
        while (step := self._held or self._next()) is not None:
            self._held = None
            if done is not None and step.epoch != done.epoch:
                self._held = step
                self._advance_behind(done)
                return
            self._advance_behind(step)
            yield step
            done = step

    def __len__(self) -> int:
        """Return the number of steps of the epoch that a pass begins or continues."""
        return self.stream.steps_of_epoch(self._begins_at)

    @property
    def generator(self) -> NoReturn:
        """Refuse Accelerate's wrapping of a prepared DataLoader (`VideoStream.generator`)."""
        refuse_sharding()

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state behind the last yielded step."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state (`VideoStream.load_state_dict`)."""
        self.stream.load_state_dict(state)

    def close(self) -> None:
        """Stop threads or worker processes that prefetch; the next pass starts new ones."""
        if isinstance(self._batches, StreamIterator):
            self._batches.close()
        elif self._batches is not None:
            cursor = self.stream.cursor
            cursor.move(cursor.position, cursor.taken)  # of what was read ahead nothing was used
        self._batches, self._held = None, None

    def _next(self) -> Step | None:
        if self._batches is None:
            self._batches = iter(self.stream) if self._loader is None else iter(self._loader)
        batches = list[Microbatch | Pack]()
        try:
            for batch in self._batches:
                batches.append(batch)
                if batch.ends_step:
                    return Step(tuple(batches))
        except BaseException:
            self.close()
            raise
        return None

    def _advance_behind(self, step: Step) -> None:
        self.stream.advance(step.batches[-1])
        self._moves = self.stream.cursor.moves
