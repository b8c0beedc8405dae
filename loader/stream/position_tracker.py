"""Where a stream stands: in the process that made it, and in its copies in worker processes of DataLoaders."""

import json
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from loader.errors import UsageError
from loader.plan.position import Position, read_state, state_of
from loader.stream.worker_starts import WorkerStarts


class PassStart(NamedTuple):
    """Where a pass over a stream begins.

    Attributes:
        position: of the step.
        first: microbatch that is read first, counted from the step's beginning.
        move: count of the moves that led there.
    """

    position: Position
    first: int
    move: int


class PositionTracker:
    """The position of a stream and the count of its moves.

    Args:
        position: at first.

    Attributes:
        position: between two steps.
        taken: microbatches of the next step that are not read again.
        moves: how often the stream was moved.
    """

    def __init__(self, position: Position) -> None:
        self.position, self.taken, self.moves = position, 0, 1
        self._starts = WorkerStarts()
        self._is_old_copy = False  # in a worker process that has begun a pass before

    def move(self, position: Position, taken: int = 0) -> None:
        """Set the position, also for worker processes that begin another pass.

        Args:
            position: between two steps.
            taken: microbatches of the next step that are not to be read again.
        """
        self.position, self.taken = position, taken
        if get_worker_info() is not None:
            return  # a copy: where the stream stands is not for it to say
        self.moves += 1
        if not self._starts.is_own:
            self._starts = WorkerStarts()
        if self._starts.last:
            self._starts.post(self.moves, json.dumps([_text_of(position), taken]))

    def check_unread(self) -> None:
        """Check that no worker process has begun to read behind the last move.

        Raises:
            UsageError: one has.
        """
        if get_worker_info() is None and self._starts.is_own and self._starts.last >= self.moves:
            raise UsageError(_READ)

    def begin(self) -> PassStart:
        """Begin a pass in this process.

        Raises:
            UsageError: worker processes have read the stream from here on before.
        """
        worker = get_worker_info()
        if worker is None:
            self.check_unread()
            return PassStart(self.position, self.taken, self.moves)
        move, text = self._starts.posted()
        if self._is_old_copy and move > self.moves:
            state, self.taken = json.loads(text)
            self.position, self.moves = read_state(state).position, move
        self._is_old_copy = True
        if self._starts.begun(worker.id) >= self.moves:
            raise UsageError(_READ)
        self._starts.begin(worker.id, self.moves)
        return PassStart(self.position, self.taken + worker.id, self.moves)

    def begin_at(self, first: int) -> PassStart:
        """Begin a pass in this process behind microbatches that it has read before.

        Args:
            first: microbatch that is read first, counted from the position.
        """
        worker = get_worker_info()
        if worker is not None:
            self._starts.begin(worker.id, self.moves)
        return PassStart(self.position, first, self.moves)

    def check_followed(self, move: int) -> None:
        """Check in a worker process that all of them read the same pass.

        Args:
            move: behind which the pass of this one began.

        Raises:
            UsageError: another began a later one.
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
    """A position as JSON values, for copies of the same stream."""
    return state_of(position, "", "", 0)
