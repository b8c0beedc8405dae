"""Shared memory of a stream and its copies in DataLoader worker processes: where workers began to read.

A DataLoader copies its dataset into worker processes, which prefetch; the dataset never learns how much was used. Once
workers have begun, neither the stream's position nor a second pass over it is valid until a state moves the stream.
Workers that outlive a pass (``persistent_workers``) read the beginning of the next pass here.
"""

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.shared.memory import shared_zeros
from reelweave.loader.errors import UsageError

_WORKERS = 1024
_TEXT_SIZE = 8192
_POSTED, _POSTING, _LENGTH, _FIRST = range(4)  # indices of numbers; those of workers follow
_NUMBERS = _FIRST + _WORKERS


class WorkerStarts:
    """State shared between a stream and its copies in worker processes.

    Moves count from 1: one for each advance of the stream and each loaded state. A copy that is not made for a child
    process starts empty.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._memory = shared_zeros(8 * _NUMBERS + _TEXT_SIZE)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if get_spawning_popen() is not None else {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state or WorkerStarts().__dict__)

    @property
    def is_own(self) -> bool:
        """True in the process that created the object."""
        return os.getpid() == self._owner

    @property
    def last(self) -> int:
        """Last move behind which a worker process began; 0 if none has."""
        return int(self._numbers[_FIRST:].max())

    def begin(self, worker: int, move: int) -> None:
        """Record in a worker process that it begins to read.

        Args:
            worker: number of the worker.
            move: move behind which it begins.

        Raises:
            UsageError: the stream was made by another process than the one that iterates over the DataLoader.
        """
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != self._owner:
            raise UsageError(
                "a DataLoader with worker processes has to be used in the process that made its stream: make the"
                " VideoStream where the DataLoader is made"
            )
        if worker >= _WORKERS:
            raise UsageError(
                f"a stream is read by at most {_WORKERS} worker processes: set a smaller num_workers"
            )
        self._numbers[_FIRST + worker] = move

    def start_move(self, worker: int) -> int:
        """Return the last move behind which this worker process began; 0 if none."""
        return int(self._numbers[_FIRST + worker]) if worker < _WORKERS else 0

    def post(self, move: int, text: str) -> None:
        """Leave a text for worker processes that begin another pass.

        Args:
            move: number of the move.
            text: position of the next pass.
        """
        content, posted = np.frombuffer(text.encode(), np.uint8), self._numbers
        posted[_POSTING] = move
        posted[_LENGTH] = len(content)
        self._memory.numpy()[8 * _NUMBERS :][: len(content)] = content
        posted[_POSTED] = move

    def last_posted(self) -> tuple[int, str]:
        """Return the number of the last posted move, 0 if none, and its text."""
        posted = self._numbers
        while True:
            move = int(posted[_POSTED])
            content = self._memory.numpy()[8 * _NUMBERS :][: int(posted[_LENGTH])].tobytes()
            if posted[_POSTING] == move:
                return move, content.decode()

    @property
    def _numbers(self) -> IndexArray:
        return self._memory.numpy()[: 8 * _NUMBERS].view(np.int64)
