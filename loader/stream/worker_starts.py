"""Where worker processes of DataLoaders began to read a stream, in memory that they share with it.

A DataLoader copies its dataset into worker processes, which read ahead, and nobody tells the dataset how much of that
was used. So a stream has to know that they began: until it is moved by a state, neither its position nor a second pass
over it would be right. Processes that outlive a pass (``persistent_workers``) learn here where the next one begins.
"""

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from loader.base.arrays import Places
from loader.base.shared_memory import shared_zeros
from loader.errors import UsageError

_WORKERS = 1024
_TEXT_SIZE = 8192
_POSTED, _POSTING, _LENGTH, _FIRST = range(4)  # places of numbers; those of workers follow
_NUMBERS = _FIRST + _WORKERS


class WorkerStarts:
    """What a stream and its copies in worker processes know of each other.

    Moves are counted from 1: each time the stream goes on or a state is loaded.

    A copy that is not made for a child process begins afresh.
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
        """Whether this process made it."""
        return os.getpid() == self._owner

    @property
    def last(self) -> int:
        """The last move behind which a worker process began; 0: none has."""
        return int(self._numbers[_FIRST:].max())

    def begin(self, worker: int, move: int) -> None:
        """Note in a worker process that it begins to read.

        Args:
            worker: its number.
            move: behind which it begins.

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

    def begun(self, worker: int) -> int:
        """The move behind which a worker process of that number last began; 0: none has."""
        return int(self._numbers[_FIRST + worker]) if worker < _WORKERS else 0

    def post(self, move: int, text: str) -> None:
        """Leave a text for worker processes that begin another pass.

        Args:
            move: that led there.
            text: where they begin.
        """
        content, numbers = np.frombuffer(text.encode(), np.uint8), self._numbers
        numbers[_POSTING] = move
        numbers[_LENGTH] = len(content)
        self._memory.numpy()[8 * _NUMBERS :][: len(content)] = content
        numbers[_POSTED] = move

    def posted(self) -> tuple[int, str]:
        """The last text, and the move that led there; 0 where there is none."""
        numbers = self._numbers
        while True:
            move = int(numbers[_POSTED])
            content = self._memory.numpy()[8 * _NUMBERS :][: int(numbers[_LENGTH])].tobytes()
            if numbers[_POSTING] == move:
                return move, content.decode()

    @property
    def _numbers(self) -> Places:
        return self._memory.numpy()[: 8 * _NUMBERS].view(np.int64)
