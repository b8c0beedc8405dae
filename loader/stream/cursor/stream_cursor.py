"""Position of a stream in the plans of its source, and the states that hold it."""

from functools import cached_property
from typing import Any

from torch.utils.data import get_worker_info

from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import EpochSegment, Position, Setting, read_state, state_of
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.checks.step_size import warn_of_step_size
from reelweave.loader.stream.curriculum_plans import CurriculumPlans, plan_fingerprint
from reelweave.loader.stream.cursor.loader_state import (
    IteratorState,
    LoaderPosition,
    is_loader_state,
    read_loader_state,
)
from reelweave.loader.stream.cursor.position_tracker import PassStart, PositionTracker
from reelweave.loader.stream.cursor.resume_position import continued_position


class StreamCursor(PositionTracker):
    """Position of one rank's stream, which its passes, states and changes of its plan move.

    Args:
        source: a dataset, or a blend of several.
        config: configuration of the stream.
        rank: this data-parallel rank.
        world_size: number of data-parallel ranks.

    Attributes:
        source: source in its present revision.
        plans: plans of the source.
        rank: this data-parallel rank.
    """

    def __init__(self, source: SampleSource, config: StreamConfig, rank: int, world_size: int) -> None:
        setting = Setting(
            policy=config.policy, regime=config.regime, lookahead=config.lookahead, shuffle=config.shuffle
        )
        super().__init__(Position(0, 0, (EpochSegment(setting, world_size, config.microbatches, 0),)))
        self.source, self.rank = source, rank
        self.plans = CurriculumPlans(source, config)
        self._config, self._world_size = config, world_size

    def state(self, position: Position) -> dict[str, Any]:
        """Return the state of any position, as a few JSON values."""
        revisions = self.source.revisions if isinstance(self.source, Blend) else None
        return state_of(
            position,
            self.source.fingerprint,
            self._config_fingerprint,
            self._config.seed,
            revisions,
            self._config.selection.words,
        )

    def load(self, state: dict[str, Any]) -> None:
        """Move to a state of a stream, or of a StatefulDataLoader around one.

        Raises:
            UsageError: the state belongs to another plan, or counts within a step of another one.
        """
        if is_loader_state(state):
            self._move_behind(read_loader_state(state))
        else:
            self._move_to(state)

    def resume(self, state: IteratorState, worker: int, workers: int) -> PassStart:
        """Return the beginning of a pass that continues one process's iterator.

        Args:
            state: state of the iterator.
            worker: number of this worker process.
            workers: number of worker processes; 1 without any.

        Raises:
            UsageError: the state belongs to another worker, rank or plan.
        """
        if (state.worker, state.workers) != (worker, workers):
            raise UsageError(
                f"worker process {state.worker} of {state.workers} saved what {worker} of {workers} loads; give the"
                " StatefulDataLoader's whole state to the stream, stream.load_state_dict(loader_state), and none to the"
                " loader"
            )
        if get_worker_info() is None:
            self._move_behind(LoaderPosition(state.stream, state.rank, state.next, 0))
            return self.begin()
        position, is_planned_alike = self._find_position(state.stream)
        if not is_planned_alike or state.rank != self.rank:
            raise UsageError(
                f"the loader's state was saved by rank {state.rank} or planned otherwise, so its processes stand at"
                " other places now; give it to the stream, stream.load_state_dict(loader_state), and none to the loader"
            )
        self.move(position)
        return self.begin_at(state.next)

    def adopt(self, source: SampleSource) -> None:
        """Continue with a later revision of the source; nothing changes where it is none.

        Raises:
            UsageError: `source` is no later revision, has no record of the current one, or worker processes read.
        """
        self.check_unread()
        state, before = self.state(self.position), (self.source, self.plans)
        self.source, self.plans = source, CurriculumPlans(source, self._config)
        try:
            self._move_to(state)
        except BaseException:
            self.source, self.plans = before
            raise

    def recalibrate(self, cost: Cost) -> bool:
        """Plan with another cost from here on; return False, without a change, if the state would exceed its bounds.

        Raises:
            UsageError: worker processes have read from here.
        """
        self.check_unread()
        setting = self.position.part.setting.model_copy(update={"cost": cost})
        position = self.position.going_on(setting, self._world_size, self._config.microbatches)
        if not position.fits_a_state:
            return False
        self.move(position)
        return True

    @cached_property
    def _config_fingerprint(self) -> str:
        return plan_fingerprint(self._config)

    def _move_behind(self, saved: LoaderPosition) -> None:
        """Continue behind the last microbatch of a loader; from the step's beginning if the plan differs."""
        position, is_planned_alike = self._find_position(saved.stream)
        if is_planned_alike and saved.rank == self.rank:
            self.move(position, saved.used + saved.more)
        elif saved.more:
            raise UsageError(
                "cannot resume: a StatefulDataLoader with snapshot_every_n_steps > 1 counted microbatches of"
                f" rank {saved.rank} and its plan; use the rank, ranks and plan of that time, or snapshots of each step"
            )
        else:
            self.move(position)

    def _move_to(self, state: dict[str, Any]) -> None:
        self.move(self._find_position(state)[0])

    def _find_position(self, state: dict[str, Any]) -> tuple[Position, bool]:
        """Return the position of a state, and False if the rest of its epoch is divided differently from then."""
        loaded = read_state(state)
        position = continued_position(
            loaded,
            self.state(self.position),
            self.source,
            self.plans,
            self.position.part.setting,
            self._world_size,
            self._config.microbatches,
        )
        if self.rank == 0 and loaded.position.step:
            warn_of_step_size(loaded.position.part, position.part)
        return position, bool(position == loaded.position)
