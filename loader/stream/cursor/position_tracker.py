"""Position of a stream, shared with its copies in DataLoader worker processes."""

import json
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import Position, read_state, state_of
from reelweave.loader.stream.cursor.worker_starts import WorkerStarts


class PassStart(NamedTuple):
    """Beginning of a pass over a stream.

    Attributes:
        position: position of the step.
        first: first microbatch to read, counted from the beginning of the step.
        move: number of the move that led to the position.
    """

    position: Position
    first: int
    move: int


class PositionTracker:
    """Position of a stream and the number of its moves.

    Args:
        position: initial position.

    Attributes:
        position: position between two steps.
        taken: microbatches of the next step that are not read again.
        moves: number of moves of the stream.
    """

    def __init__(self, position: Position) -> None:
        self.position, self.taken, self.moves = position, 0, 1
        self._starts = WorkerStarts()
        self._is_old_copy = False  # True in a worker process that has begun a pass

    def move(self, position: Position, microbatches: int = 0) -> None:
        """Set the position, for worker processes that begin another pass, too.

        Args:
            position: position between two steps.
            microbatches: microbatches of the next step that are not read again.
        """
        self.position, self.taken = position, microbatches
        if get_worker_info() is not None:
            return  # copies in workers never move the stream
        self.moves += 1
        if not self._starts.is_own:
            self._starts = WorkerStarts()
        if self._starts.last:
            self._starts.post(self.moves, json.dumps([_text_of(position), microbatches]))

    def check_unread(self) -> None:
        """Check that no worker process has begun to read behind the last move.

        Raises:
            UsageError: a worker process has.
        """
        if get_worker_info() is None and self._starts.is_own and self._starts.last >= self.moves:
            raise UsageError(_READ)

    def begin(self) -> PassStart:
        """Begin a pass in this process.

        Raises:
            UsageError: worker processes have read the stream from this position before.
        """
        worker = get_worker_info()
        if worker is None:
            self.check_unread()
            return PassStart(self.position, self.taken, self.moves)
        move, text = self._starts.last_posted()
        if self._is_old_copy and move > self.moves:
            state, self.taken = json.loads(text)
            self.position, self.moves = read_state(state).position, move
        self._is_old_copy = True
        if self._starts.start_move(worker.id) >= self.moves:
            raise UsageError(_READ)
        self._starts.begin(worker.id, self.moves)
        return PassStart(self.position, self.taken + worker.id, self.moves)

    def begin_at(self, first: int) -> PassStart:
        """Begin a pass in this process behind microbatches that it has read before.

        Args:
            first: first microbatch to read, counted from the position.
        """
        worker = get_worker_info()
        if worker is not None:
            self._starts.begin(worker.id, self.moves)
        return PassStart(self.position, first, self.moves)

    def check_followed(self, move: int) -> None:
        """Check in a worker process that all workers read the same pass.

        Args:
            move: move behind which this worker's pass began.

        Raises:
            UsageError: another worker began a later pass.
        """
        if self._starts.last > move:
            raise UsageError(
                "the stream was moved, or another DataLoader began to read it, in the middle of a pass"
            )


_READ = (
    "worker processes of a DataLoader have read this stream, and it cannot know how much of that was used: first say"
    " where to go on, stream.advance(last_batch) or stream.load_state_dict(state); or let a"
    " StepLoader(stream, processes=n) read, which keeps count"
)


def _text_of(position: Position) -> dict[str, Any]:
    """Return a position as JSON values, for copies of the same stream."""
    return state_of(position, "", "", 0)
