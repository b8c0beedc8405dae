"""Plans of a stream under a curriculum: draws and buckets of each stage."""

import hashlib
import json
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from reelweave.loader.base.arrays import IndexArray, IntegerArray
from reelweave.loader.base.shared.node_files import Arrays, NodeFiles
from reelweave.loader.blend import Blend, Curriculum, CurriculumStage
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Assignment, BucketConfig, assign, with_cost
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_order import group_draws
from reelweave.loader.plan.epoch_plan import EpochPlan, plan_epoch
from reelweave.loader.plan.policy import budgets_of
from reelweave.loader.plan.position import Position, Setting
from reelweave.loader.plan.shuffle import Grouped
from reelweave.loader.read.locality import near_rows
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.shared_plan import shared_plan
from reelweave.loader.stream.source_draws import BlendDraws, DatasetDraws, SourceDraws, done_segments


class CurriculumPlans:
    """Plans of a stream as pure functions of a position; cached results are not pickled.

    Args:
        source: samples of the stream.
        config: configuration of the stream.

    Raises:
        UsageError: a stage names weights that the source lacks, or its shapes make no bucket configuration.
    """

    def __init__(self, source: SampleSource, config: StreamConfig) -> None:
        self._source, self._seed = source, config.seed
        self._node = None if config.node_folder is None else NodeFiles(config.node_folder)
        self._plans = config.model_dump(mode="json", include={"seed", "buckets", "curriculum", "policy"})
        self._names: list[str] = []
        self._longest_text = _counts_longest_text(config)
        self._curriculum = config.curriculum or Curriculum((CurriculumStage(),))
        self._assignments: dict[tuple[int, str | None], Assignment] = {}
        self._grouped: dict[tuple[int, int], Grouped] = {}
        self._made: tuple[Position, EpochPlan] | None = None
        self._all: list[tuple[Position, weakref.ref[EpochPlan]]] = []
        budgets = budgets_of(config.policy, config.buckets)
        self._buckets: list[BucketConfig] = []
        for index, stage in zip(self._curriculum.given, self._curriculum.stages, strict=True):
            try:
                self._buckets.append(stage.buckets(budgets))
                if stage.weights is not None:
                    _blend(source).reweight(stage.weights)
            except (UsageError, ValidationError) as error:
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                raise UsageError(f"stream.curriculum.{index}: {reason}") from error

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_draws"}
        return {**state, "_assignments": {}, "_grouped": {}, "_names": [], "_made": None, "_all": []}

    @property
    def count(self) -> int:
        """Number of curriculum stages."""
        return len(self._curriculum.stages)

    @property
    def given(self) -> tuple[int, ...]:
        """Index of each stage in ``stream.curriculum``, where one whose weights change stands for several."""
        return self._curriculum.given

    @property
    def buckets(self) -> tuple[BucketConfig, ...]:
        """Bucket configuration of each stage."""
        return tuple(self._buckets)

    def assignment(self, setting: Setting) -> Assignment:
        """Return the assignment of samples to buckets under a setting."""
        assignment = self._assign(setting.stage, setting.revision)
        if setting.cost is None:
            return assignment
        return with_cost(assignment, setting.cost)

    def stage_assignment(self, index: int) -> Assignment:
        """Return the assignment of samples to the buckets of a stage, by the stage's number."""
        return self._assign(index)

    def plan(self, position: Position) -> EpochPlan:
        """Return the plan of the epoch segment that continues."""
        begun, plan_of = _segment_begin(position), self._made
        if plan_of is None or plan_of[0] != begun:
            plan_of = self._made = (
                begun,
                self._make_plan(begun),
            )  # the thread that reads ahead may set it, too
            alive = [(start, plan) for start, plan in self._all if plan() is not None]
            self._all = [*alive, (begun, weakref.ref(plan_of[1]))]
        return plan_of[1]

    def cached_plan(self, position: Position) -> EpochPlan | None:
        """Return the same plan if cached: the last one, or one that is still being read; else None."""
        begun = _segment_begin(position)
        return next((plan() for start, plan in self._all if start == begun), None)

    def _make_plan(self, position: Position) -> EpochPlan:
        part, assignment = position.part, self.assignment(position.part.setting)
        content = [self._source.fingerprint, self._plans, asdict(position)]
        name = _plan_name(content)
        if (
            not isinstance(self._source, Blend)
            and part.setting.shuffle.order == "permuted"
            and len(position.parts) == 1
            and part.setting.revision is None
        ):
            # Only the groups, common to all epochs, are stored; a lazy permutation computes the rest.
            plan = self._made_here(position, self._groups(part.setting))
            return plan if self._node is None else replace(plan, shared=(self._node, name))
        if self._node is None:
            return self._made_here(position)
        plan = shared_plan(self._node, name, assignment, part.layout, lambda: self._made_here(position))
        self._names.append(name)
        for old in self._names[:-2]:  # other processes may still read the previous plan
            self._node.drop_arrays(old)
        self._names = self._names[-2:]
        return plan

    def _made_here(self, position: Position, groups: Grouped | None = None) -> EpochPlan:
        *done, part = position.parts
        epoch, setting = self._draws.epoch(position), part.setting
        runs = any(segment.setting.shuffle.run > 1 for segment in position.parts)
        return plan_epoch(
            self.assignment(setting),
            self._seed,
            position.epoch,
            part.layout,
            done_segments(done, setting.revision, self.assignment, epoch),
            epoch.draws,
            setting.shuffle,
            self._near() if runs else None,
            groups,
        )

    def _groups(self, setting: Setting) -> Grouped:
        """Return all samples grouped by bucket, for epochs of a dataset that draw each sample once."""
        key = setting.stage, min(setting.shuffle.run, 2)
        if key not in self._grouped:

            def make() -> Arrays:
                near_N = self._near() if setting.shuffle.run > 1 else None
                return group_draws(
                    self._assign(setting.stage), self._source.draws(0, self._seed), near_N
                )._asdict()

            name = _plan_name(
                [self._source.fingerprint, self._plans["buckets"], self._plans["curriculum"], key]
            )
            self._grouped[key] = Grouped(**self._keep_arrays(f"{name}.groups", make))
        return self._grouped[key]

    def _near(self) -> IntegerArray:
        """Return the place of each row in the order of the shards."""
        name = f"{_plan_name([self._source.fingerprint])}.near"
        return self._keep_arrays(name, lambda: {"near": near_rows(self._source.plan_index)})["near"]

    def _keep_arrays(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        return make() if self._node is None else self._node.arrays(name, make)

    def enter(self, position: Position) -> Position:
        """Return the same position in the curriculum stage of its step.

        Other frames or sizes apply to the rest of the epoch. Other weights begin a new epoch; samples left over from
        the previous epoch wait for their next pass.
        """
        index, setting = self._curriculum.stage_at(position.step), position.part.setting
        if index != setting.stage:
            stages, part = self._curriculum.stages, position.part
            setting = setting.model_copy(update={"stage": index})
            moved = position.going_on(setting, part.ranks, part.microbatches)
            reweighted = stages[index].weights != stages[part.setting.stage].weights
            if not position.begins_epoch and (reweighted or not moved.fits_a_state):
                moved = position.next_epoch().going_on(setting, part.ranks, part.microbatches)
            position = moved
        if position.begins_epoch and index != position.eras[-1].stage:
            position = position.next_era(index)
        return position

    def ends_at(self, position: Position) -> int | None:
        """Return the first step of the next stage; None in the last stage."""
        return self._curriculum.stages[position.part.setting.stage].until_step

    def settle(self, position: Position) -> Position:
        """Return the same position without what its draws do not need any more of earlier revisions of a blend."""
        return self._draws.settle(position) if isinstance(self._draws, BlendDraws) else position

    @cached_property
    def _draws(self) -> SourceDraws:
        if not isinstance(self._source, Blend):
            return DatasetDraws(self._source, self._rows)
        weights = [stage.weights for stage in self._curriculum.stages]
        return BlendDraws(self._source, self._seed, weights, self.assignment, self._lengths)

    def _rows(self) -> IntegerArray:
        name = f"{_plan_name([self._source.fingerprint])}.rows"
        return self._keep_arrays(name, lambda: {"rows": self._source.draws(0, self._seed).rows})["rows"]

    def _lengths(self, index: int, revision: str | None) -> IndexArray:
        return self._assign(index, revision).drawn_lengths()

    def _assign(self, stage_index: int, revision: str | None = None) -> Assignment:
        if (stage_index, revision) not in self._assignments:
            index = self._draws.plan_index(revision)
            content = [self._source.fingerprint, revision, self._buckets[stage_index].model_dump(mode="json")]
            name = f"{_plan_name(content)}.buckets"
            assignment = assign(
                index,
                self._buckets[stage_index],
                lambda make: self._keep_arrays(name, lambda: {"bucket": make()})["bucket"],
            )
            if self._longest_text:
                longest = np.full(1, assignment.max_text_tokens, np.int32)
                assignment = replace(assignment, text_tokens=np.broadcast_to(longest, len(index)))
            self._assignments[stage_index, revision] = assignment
        return self._assignments[stage_index, revision]


def plan_keys(config: StreamConfig) -> dict[str, Any]:
    """Return the keys as JSON values. Among policies only equal_token changes the number of samples of a microbatch."""
    values = config.model_dump(mode="json", include={"buckets", "curriculum"})
    policy = config.policy if config.policy == "equal_token" else "another than equal_token"
    return {**values, "policy": policy} | ({"text_tokens": "longest"} if _counts_longest_text(config) else {})


def plan_fingerprint(config: StreamConfig) -> str:
    """Return the SHA-256 of the keys, by which a state knows the plans whose steps it counts."""
    plans = config.model_dump(mode="json", include={"buckets", "curriculum"})
    longest = ["longest text"] if _counts_longest_text(config) else []
    content = json.dumps([plans, config.policy == "equal_token", *longest], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _counts_longest_text(config: StreamConfig) -> bool:
    """Return whether packs count the most text tokens for each sample, since its caption may be another one."""
    return config.regime == "pack" and any(
        name != "default" for name, weight in config.captions.items() if weight
    )


def _blend(source: SampleSource) -> Blend:
    if not isinstance(source, Blend):
        raise UsageError("a dataset alone has no weights; stream a blend file")
    return source


def _plan_name(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Fraction) else value.model_dump(mode="json")


def _segment_begin(position: Position) -> Position:
    """Return the beginning of the segment that continues; its plan does not depend on the step."""
    return replace(position, step=0, parts=(*position.parts[:-1], position.part._replace(steps=0)))
