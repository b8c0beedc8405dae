"""What a stream draws and how it is bucketed, stage by stage of a curriculum."""

import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from loader.blend import Blend, Curriculum, Stage
from loader.buckets import Assignment, BucketConfig, assign, with_cost
from loader.epoch_draws import Draws
from loader.errors import UsageError
from loader.plan import Done, EpochPlan, plan_epoch
from loader.policy import budgets_of
from loader.position import Position, Setting
from loader.source import Source
from loader.stream_config import StreamConfig


class Stages:
    """The plans of a stream: pure functions of a position. What was computed for them is not pickled.

    Args:
        source: of the samples.
        config: of the stream.

    Raises:
        UsageError: a stage has weights that the source has not, or its shapes make no bucket configuration.
    """

    def __init__(self, source: Source, config: StreamConfig) -> None:
        self._source, self._seed = source, config.seed
        self._curriculum = config.curriculum or Curriculum((Stage(),))
        self._assignments: dict[int, Assignment] = {}
        self._made: tuple[Position, EpochPlan] | None = None
        self._all: list[tuple[Position, weakref.ref[EpochPlan]]] = []
        budgets = budgets_of(config.policy, config.buckets)
        self._buckets: list[BucketConfig] = []
        for place, stage in enumerate(self._curriculum.root):
            try:
                self._buckets.append(stage.buckets(budgets))
                if stage.weights is not None:
                    self._weighted(self._blend(), place)
            except (UsageError, ValidationError) as error:
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                raise UsageError(f"stream.curriculum.{place}: {reason}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_assignments": {}, "_made": None, "_all": []}

    @property
    def count(self) -> int:
        """Of the stages."""
        return len(self._curriculum.root)

    @property
    def buckets(self) -> tuple[BucketConfig, ...]:
        """The bucket configuration of each stage."""
        return tuple(self._buckets)

    def assignment(self, setting: Setting) -> Assignment:
        """Each sample's bucket."""
        assignment = self._assigned(setting.stage)
        if setting.cost is None:
            return assignment
        return with_cost(assignment, setting.cost)

    def plan(self, position: Position) -> EpochPlan:
        """The part of the epoch that goes on."""
        begun = _begun(position)
        if self._made is None or self._made[0] != begun:
            self._made = begun, self._planned(begun)
            kept = [(known, plan) for known, plan in self._all if plan() is not None]
            self._all = [*kept, (begun, weakref.ref(self._made[1]))]
        return self._made[1]

    def made(self, position: Position) -> EpochPlan | None:
        """The same plan where it is at hand: the last that was made, or one whose microbatches are not all read."""
        begun = _begun(position)
        return next((plan() for known, plan in self._all if known == begun), None)

    def _planned(self, position: Position) -> EpochPlan:
        *done, part = (
            Done(self.assignment(part.setting), part.division, part.steps) for part in position.parts
        )
        draws = self._draws(position)
        return plan_epoch(part.assignment, self._seed, position.epoch, part.division, done, draws)

    def entered(self, position: Position) -> Position:
        """The same position in the stage of its step.

        Other frames or sizes hold for the rest of the epoch. Other weights begin an epoch of their own, and what the
        epoch before has not trained waits for its next pass.
        """
        place, setting = self._curriculum.place_at(position.step), position.part.setting
        if place != setting.stage:
            stages, part = self._curriculum.root, position.part
            setting = setting.model_copy(update={"stage": place})
            moved = position.going_on(setting, part.ranks, part.microbatches)
            reweighted = stages[place].weights != stages[part.setting.stage].weights
            if not position.begins_epoch and (reweighted or not moved.fits_a_state):
                moved = position.next_epoch().going_on(setting, part.ranks, part.microbatches)
            position = moved
        if position.begins_epoch and place != position.eras[-1].stage:
            position = position.next_era(place)
        return position

    def ends_at(self, position: Position) -> int | None:
        """The first step of the next stage; None where there is none."""
        return self._curriculum.root[position.part.setting.stage].until_step

    def _draws(self, position: Position) -> Draws:
        if not isinstance(self._source, Blend):
            return self._source.draws(position.epoch, self._seed)
        blend = self._source
        for era, following in pairwise(position.eras):
            weighted, lengths_N = self._weighted(blend, era.stage), self._assigned(era.stage).drawn_lengths()
            blend = blend.begun_after(weighted.passes_after(following.epoch - era.epoch, lengths_N))
        era = position.eras[-1]
        weighted, lengths_N = self._weighted(blend, era.stage), self._assigned(era.stage).drawn_lengths()
        return weighted.draws(position.epoch - era.epoch, self._seed, lengths_N)

    def _blend(self) -> Blend:
        if not isinstance(self._source, Blend):
            raise UsageError("a dataset alone has no weights; stream a blend file")
        return self._source

    def _weighted(self, blend: Blend, place: int) -> Blend:
        weights = self._curriculum.root[place].weights
        return blend if weights is None else blend.reweighted(weights)

    def _assigned(self, place: int) -> Assignment:
        if place not in self._assignments:
            self._assignments[place] = assign(self._source.plan_index, self._buckets[place])
        return self._assignments[place]


def _begun(position: Position) -> Position:
    """Where the part of the epoch that goes on began; the step plays no part in its plan."""
    return replace(position, step=0, parts=(*position.parts[:-1], position.part._replace(steps=0)))
