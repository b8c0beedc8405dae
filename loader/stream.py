"""A deterministic, resumable stream of equal-shape microbatches."""

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from loader.batch import Microbatch
from loader.buckets import Assignment, assign, with_cost
from loader.cost import Cost
from loader.dataset import Dataset
from loader.errors import UsageError
from loader.pipeline import Pipeline, Planned
from loader.plan import Done, EpochPlan, plan_epoch
from loader.policy import budgets_of
from loader.position import Part, Position, Setting, read_state, state_of
from loader.samples import Samples
from loader.stream_config import StreamConfig


class EpochProgress(NamedTuple):
    """How far an epoch is.

    Attributes:
        samples_done: trained on.
        samples_left: that fit a bucket and are still to come.
        steps_left: that they make.
    """

    samples_done: int
    samples_left: int
    steps_left: int


class VideoStream(IterableDataset[Microbatch]):
    """The microbatches of one rank, in plan order.

    Iterating goes on from the state and moves it, a step at a time: a stream left in mid-step begins that step
    again. In a ``DataLoader(stream, batch_size=None, num_workers=...)`` each worker process decodes its share and
    the loader restores plan order; the processes then hold copies of this object, so take the state from
    ``state_after(microbatch)``.

    A sample that is damaged, missing or cannot be decoded is reported in `Microbatch.bad`, and the next one of its
    bucket, by the plan, stands in for it.

    Args:
        dataset: where the samples lie.
        config: what is streamed.
        rank: this data-parallel rank.
        world_size: data-parallel ranks.

    Attributes:
        assignment: each sample's bucket, and the samples that fit none.
        steps_per_epoch: optimizer steps of an epoch that nothing changes, the same for every rank.

    Raises:
        UsageError: no such rank, or fewer samples in buckets than ranks.
    """

    def __init__(self, dataset: Dataset, config: StreamConfig, rank: int = 0, world_size: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} does not exist in a world of {world_size} ranks")
        self.dataset = dataset
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self._buckets = budgets_of(config.policy, config.buckets)
        self.assignment = assign(dataset.index, self._buckets)
        setting = Setting(policy=config.policy, regime=config.regime, lookahead=config.lookahead)
        self._position = Position(0, 0, (Part(setting, world_size, config.microbatches, 0),))
        self.steps_per_epoch = len(self._plan(0, self._position.parts))

    def __iter__(self) -> Iterator[Microbatch]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        pin = self.config.pin_memory and worker is None and torch.cuda.is_available()
        with Pipeline(Samples(self.dataset), self.config, pin) as pipeline:
            for microbatch in pipeline.run(islice(self._planned(), first, None, stride)):
                self._position = microbatch.after
                yield microbatch

    def state_dict(self) -> dict[str, Any]:
        """The state after the last microbatch this object yielded; a few JSON values."""
        return self._state(self._position)

    def state_after(self, microbatch: Microbatch) -> dict[str, Any]:
        """The state from which a stream goes on behind ``microbatch``; within a step, from the step's beginning."""
        return self._state(microbatch.after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this or another rank, in this or another process.

        Raises:
            UsageError: the state is of another dataset, seed, bucket configuration or version, so its
                position counts steps of another plan; or the epoch was changed too often.
        """
        loaded, own = read_state(state), self.state_dict()
        for key in ("dataset", "seed", "config"):
            if (saved := getattr(loaded, key)) != own[key]:
                raise UsageError(
                    f"cannot resume: {key} was {saved} when the state was saved and is {own[key]} now; "
                    "use the same one, or start without a state"
                )
        position = loaded.position
        steps = len(self._plan(position.epoch, position.parts))
        if position.part.steps > steps:
            raise UsageError(
                f"cannot resume: {position.part.steps} steps of the epoch are done, but it has {steps} steps"
            )
        setting = self._position.part.setting.model_copy(update={"cost": position.part.setting.cost})
        position = position.going_on(setting, self.world_size, self.config.microbatches)
        if not position.fits_a_state:
            raise UsageError(
                "cannot resume: steps of this epoch were made in as many ways as a state can hold; until it ends, use"
                " the ranks, microbatches, policy, regime and lookahead that the state was saved with"
                " (`reelweave state inspect` shows them)"
            )
        self._position = position

    def recalibrate(self, cost: Cost) -> bool:
        """Plans with another cost from here on; every rank must call it between the same two steps.

        An iterator that is in use still follows the old plan: take a new one. False, and nothing changes, where
        the epoch has seen so many costs that its state would grow beyond bounds.

        Args:
            cost: seconds of a microbatch (`loader.recalibrate`).
        """
        setting = self._position.part.setting.model_copy(update={"cost": cost})
        position = self._position.going_on(setting, self.world_size, self.config.microbatches)
        if not position.fits_a_state:
            return False
        self._position = position
        return True

    def epoch_progress(self) -> EpochProgress:
        """How far the epoch is in which the stream goes on."""
        position = self._position
        plan = self._plan(position.epoch, position.parts)
        drawn = int((self.assignment.bucket_of[plan.draws.rows] >= 0).sum())
        # Fillers repeat what their step holds.
        left = len(plan.order) - len(np.unique(plan.drawn_before(position.part.steps)))
        return EpochProgress(drawn - left, left, len(plan) - position.part.steps)

    def _planned(self) -> Iterator[Planned]:
        position, assignment = self._position, self.assignment
        while self.config.epochs is None or position.epoch < self.config.epochs:
            plan = self._plan(position.epoch, position.parts)
            for number in range(position.part.steps, len(plan)):
                own, after = plan.step(number, self.rank), position.after_step()
                for micro in own.microbatches:
                    yield Planned(
                        plan=plan,
                        micro=micro,
                        bucket=assignment.buckets[micro.bucket],
                        length=assignment.lengths[micro.bucket],
                        slots=len(own.microbatches),
                        samples=own.samples,
                        before=position,
                        after=after,
                    )
                position = after
            position = position.next_epoch()

    def _plan(self, epoch: int, parts: tuple[Part, ...]) -> EpochPlan:
        """The part of an epoch that goes on."""
        done = [Done(self._assignment(part.setting.cost), part.division, part.steps) for part in parts]
        return plan_epoch(done[-1].assignment, self.config.seed, epoch, done[-1].division, done[:-1])

    def _assignment(self, cost: Cost | None) -> Assignment:
        return self.assignment if cost is None else with_cost(self.assignment, self._buckets, cost)

    def _state(self, position: Position) -> dict[str, Any]:
        buckets = json.dumps(self._buckets.model_dump(mode="json"), sort_keys=True)
        config = hashlib.sha256(buckets.encode()).hexdigest()
        return state_of(position, self.dataset.fingerprint, config, self.config.seed)
