"""A deterministic, resumable stream of equal-shape microbatches."""

import hashlib
import json
import logging
import weakref
from collections.abc import Generator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from loader.base.difference import first_difference
from loader.batch import Batch, Microbatch, Pack, UpcomingMicrobatch
from loader.blend.source import SampleSource
from loader.buckets.assignment import Assignment, BucketConfig, shapes_of
from loader.buckets.cost import Cost
from loader.dataset import Dataset
from loader.dataset.latents import Latents
from loader.errors import UsageError
from loader.paper.idle_forecast import forecast_idle
from loader.plan.position import EpochSegment, Position, Setting, read_state, state_of
from loader.read.cache import DiskCache
from loader.read.collate import dtype_and_shape
from loader.read.pipeline import ReadPipeline
from loader.read.sample_reader import SampleReader
from loader.read.share import NO_WORKERS, Share
from loader.read.stream_config import StreamConfig
from loader.stream.curriculum_plans import CurriculumPlans
from loader.stream.lengths import EpochProgress, microbatches_left, progress_of, steps_of_epoch
from loader.stream.loader_state import (
    IteratorState,
    LoaderPosition,
    is_loader_state,
    read_iterator_state,
    read_loader_state,
)
from loader.stream.position_tracker import PassStart, PositionTracker
from loader.stream.rank_microbatches import rank_microbatches

_log = logging.getLogger(__name__)


class VideoStream(IterableDataset[Microbatch | Pack]):
    """The microbatches of one rank, in plan order.

    Iterating goes on from the state and moves it, a step at a time: a stream left in mid-step begins that step
    again. In a ``DataLoader(stream, batch_size=None, num_workers=...)`` each worker process decodes its share and
    the loader restores plan order. The processes hold copies of this object, which cannot know what of their
    batches was used: say it with ``advance(batch)``, or take states from ``state_after(batch)``.

    A sample that is damaged, missing or cannot be decoded is reported in `Microbatch.bad`, and the next one of its
    bucket, by the plan, stands in for it.

    Args:
        source: a dataset, or a blend of several (`loader.blend.open_source`).
        config: what is streamed.
        rank: this data-parallel rank.
        world_size: data-parallel ranks.
        share: the model-parallel group whose ranks read this stream together; all of them have the same ``rank``.

    Attributes:
        steps_per_epoch: optimizer steps of the first epoch if nothing changes it, the same for every rank.

    Raises:
        UsageError: no such rank, fewer samples in buckets than ranks, or latents of other buckets are stored.
    """

    def __init__(
        self,
        source: SampleSource,
        config: StreamConfig,
        rank: int = 0,
        world_size: int = 1,
        share: Share | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} does not exist in a world of {world_size} ranks")
        self.source = source
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.share = share
        self._stages = CurriculumPlans(source, config)
        if config.latents and source.latents is not None:
            _check_shapes(source.latents, self._stages.buckets)
        setting = Setting(
            policy=config.policy, regime=config.regime, lookahead=config.lookahead, shuffle=config.shuffle
        )
        self._tracker = PositionTracker(
            Position(0, 0, (EpochSegment(setting, world_size, config.microbatches, 0),))
        )
        plan = self._stages.plan(self._position)
        self.steps_per_epoch = len(plan)
        told = rank == 0 and world_size > 1 and config.policy == "balanced" and config.regime != "slot"
        if told and (advice := forecast_idle(plan).advice()):
            _log.warning("%s", advice)

    @property
    def _position(self) -> Position:
        return self._tracker.position

    @property
    def assignment(self) -> Assignment:
        """Each sample's bucket where the stream stands, and the samples that fit none."""
        return self._stages.assignment(self._position.part.setting)

    def __iter__(self) -> "StreamIterator":
        return StreamIterator(self)

    def __len__(self) -> int:
        """Number of this rank's microbatches from where the stream stands to its end.

        Raises:
            NoLengthError: it has no end, or only its steps can be counted beforehand.
        """
        left = microbatches_left(self._stages, self.config, self._position)
        return left - self._tracker.taken

    def state_dict(self) -> dict[str, Any]:
        """The state after the last microbatch this object yielded; a few JSON values.

        Raises:
            UsageError: worker processes of a DataLoader read the stream.
        """
        self._tracker.check_unread()
        return self._state(self._position)

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """The state from which a stream goes on behind ``batch``; within a step, from the step's beginning."""
        return self._state(batch.after)

    def advance(self, batch: Batch) -> None:
        """Goes on behind a batch that worker processes of a DataLoader read; within a step, from its beginning.

        Args:
            batch: the last one that was used; the pass that gave it is not disturbed.
        """
        self._tracker.move(batch.after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this or another rank, in this or another process.

        Args:
            state: of a stream; or of a StatefulDataLoader around one, whatever number of worker processes it had.

        Raises:
            UsageError: the state is of another dataset, seed, bucket configuration or version, so its
                position counts steps of another plan; or the epoch was changed too often.
        """
        if is_loader_state(state):
            self._stand(read_loader_state(state))
        else:
            self._load(state)

    def _stand(self, stand: LoaderPosition) -> None:
        """Goes on behind the last microbatch that a loader gave; from the step's beginning where it had others."""
        if self._load(stand.stream) and stand.rank == self.rank:
            self._tracker.move(self._position, stand.used + stand.more)
        elif stand.more:
            raise UsageError(
                "cannot resume: a StatefulDataLoader with snapshot_every_n_steps > 1 counted microbatches of"
                f" rank {stand.rank} and its plan; use the rank, ranks and plan of that time, or snapshots of each step"
            )

    def _load(self, state: dict[str, Any]) -> bool:
        """Moves to a state; False where what is left is divided otherwise than it was planned when it was saved."""
        loaded, own = read_state(state), self._state(self._position)
        position = loaded.position
        later = isinstance(self.source, Dataset) and self.source.revision_of(loaded.dataset) is not None
        if later and loaded.dataset != own["dataset"]:
            position = _on_a_later_revision(position, loaded.dataset)
        for key in ("seed", "config") if later else ("dataset", "seed", "config"):
            if (saved := getattr(loaded, key)) != own[key]:
                raise UsageError(
                    f"cannot resume: {key} was {saved} when the state was saved and is {own[key]} now; "
                    "use the same one, or start without a state"
                )
        if any(part.setting.stage >= self._stages.count for part in position.parts):
            raise UsageError("not a state of the loader: settings: names a stage that the curriculum has not")
        steps = len(self._stages.plan(position))
        if position.part.steps > steps:
            raise UsageError(
                f"cannot resume: {position.part.steps} steps of the epoch are done, but it has {steps} steps"
            )
        before = position.part.setting
        setting = self._position.part.setting.model_copy(update={"cost": before.cost, "stage": before.stage})
        position = position.going_on(setting, self.world_size, self.config.microbatches)
        if not position.fits_a_state:
            raise UsageError(
                "cannot resume: steps of this epoch were made in as many ways as a state can hold; until it ends, use"
                " the ranks, microbatches, policy, regime and lookahead that the state was saved with"
                " (`reelweave state inspect` shows them)"
            )
        self._tracker.move(position)
        return bool(position == loaded.position)

    def adopt(self, source: Dataset) -> None:
        """Goes on with a later revision of the dataset; every rank must call it between the same two steps.

        What is left of the epoch is planned anew: every sample that came is trained on once in it, and one that went is
        not any more. An iterator that is in use still follows the old plan: take a new one.

        Args:
            source: the same dataset, opened again.

        Raises:
            UsageError: it is no later revision, or does not remember this one.
        """
        state, before = self.state_dict(), (self.source, self._stages)
        self.source, self._stages = source, CurriculumPlans(source, self.config)
        try:
            self._load(state)
        except UsageError:
            self.source, self._stages = before
            raise

    @property
    def cost(self) -> Cost:
        """What microbatches are planned with."""
        return self.assignment.cost

    def recalibrate(self, cost: Cost) -> bool:
        """Plans with another cost from here on; every rank must call it between the same two steps.

        An iterator that is in use still follows the old plan: take a new one. False, and nothing changes, where
        the epoch has seen so many costs that its state would grow beyond bounds.

        Args:
            cost: seconds of a microbatch (`loader.buckets.recalibrate`).
        """
        self._tracker.check_unread()
        setting = self._position.part.setting.model_copy(update={"cost": cost})
        position = self._position.going_on(setting, self.world_size, self.config.microbatches)
        if not position.fits_a_state:
            return False
        self._tracker.move(position)
        return True

    def steps_of_epoch(self) -> int:
        """Number of steps of the epoch in which the stream goes on, those that are done included.

        Raises:
            NoLengthError: another stage of the curriculum begins within the epoch.
        """
        return steps_of_epoch(self._stages, self.config, self._position)

    def epoch_progress(self) -> EpochProgress:
        """How far the epoch is in which the stream goes on."""
        self._tracker.check_unread()
        return progress_of(self._stages, self._position)

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        """What all ranks are about to read in the step behind the state, rank after rank; opens no file.

        None where nothing comes, or a plan would have to be made that reading has not come to yet.
        """
        self._tracker.check_unread()
        position = self._stages.entered(self._position)
        plan = self._stages.made(position)
        if plan is None or position.part.steps == len(plan):
            # All of an epoch was read where its plan is gone.
            position = self._stages.entered(position.next_epoch())
            plan = self._stages.made(position)
        if plan is None or (self.config.epochs is not None and position.epoch >= self.config.epochs):
            return None
        assignment, packed = plan.assignment, position.part.setting.regime == "pack"
        lengths_of = assignment.own_lengths if packed else assignment.padded_lengths
        latents, found = self.latents, []
        for micro in plan.step(position.part.steps).microbatches:
            buckets = tuple(assignment.buckets[place] for place in assignment.bucket_of[micro.rows])
            pixels = tuple(dtype_and_shape(bucket, latents)[0] == np.uint8 for bucket in buckets)
            contexts = latents is not None and latents.text is not None
            found.append(
                UpcomingMicrobatch(buckets, tuple(lengths_of(micro.rows).tolist()), pixels, contexts)
            )
        return found

    def _agree(self, share: Share) -> None:
        if get_worker_info() is not None:
            raise UsageError(NO_WORKERS)
        config = self.config.model_dump(include={"epochs", "decode", "max_bad", "max_bad_share"})
        share.agree(self.state_dict() | config | {"rank": self.rank, "world_size": self.world_size})

    def _resume(self, state: IteratorState, worker: int, workers: int) -> PassStart:
        """Where a pass begins that goes on with what one process was reading."""
        if (state.worker, state.workers) != (worker, workers):
            raise UsageError(
                f"worker process {state.worker} of {state.workers} saved what {worker} of {workers} loads; give the"
                " StatefulDataLoader's whole state to the stream, stream.load_state_dict(loader_state), and none to the"
                " loader"
            )
        if get_worker_info() is None:
            self._stand(LoaderPosition(state.stream, state.rank, state.next, 0))
            return self._tracker.begin()
        if not self._load(state.stream) or state.rank != self.rank:
            raise UsageError(
                f"the loader's state was saved by rank {state.rank} or planned otherwise, so its processes stand at"
                " other places now; give it to the stream, stream.load_state_dict(loader_state), and none to the loader"
            )
        return self._tracker.begin_at(state.next)

    def _read(self, position: Position, first: int) -> Generator[Microbatch | Pack, None, None]:
        worker = get_worker_info()
        if self.share is not None:
            self._agree(self.share)
        pin = self.config.pin_memory and worker is None and torch.cuda.is_available()
        kept = self.config.cache
        cache = None if kept is None else DiskCache(kept.folder, kept.max_bytes)
        stride = 1 if worker is None else worker.num_workers
        own = islice(rank_microbatches(self._stages, self.config, self.rank, position), first, None, stride)
        with ReadPipeline(SampleReader(self.source, cache), self.config, pin, self.share) as pipeline:
            yield from pipeline.run(own)

    @property
    def generator(self) -> NoReturn:
        """Refuse what Accelerate makes of a prepared DataLoader; it asks for this name before it shards a dataset.

        Raises:
            UsageError: always.
        """
        refuse_sharding()

    @property
    def latents(self) -> Latents | None:
        """What is said of the latents and contexts that microbatches hold; None where they hold none."""
        return self.source.latents if self.config.latents and self.config.decode else None

    def _state(self, position: Position) -> dict[str, Any]:
        return state_of(position, self.source.fingerprint, self._config_fingerprint, self.config.seed)

    @cached_property
    def _config_fingerprint(self) -> str:
        plans = self.config.model_dump(mode="json", include={"buckets", "curriculum"})
        # Of the policies this one alone decides B.
        said = json.dumps([plans, self.config.policy == "equal_token"], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()


class StreamIterator:
    """One pass over a stream in one process; it begins when a batch or its state is first asked for.

    Its own state, which torchdata's StatefulDataLoader saves, is exact to the microbatch, and holds for the same
    process of equally many.
    """

    def __init__(self, stream: VideoStream) -> None:
        worker = get_worker_info()
        self._stream = stream
        self._worker, self._workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._batches: Generator[Microbatch | Pack, None, None] | None = None
        self._start: PassStart | UsageError | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Microbatch | Pack:
        start, stream = self._begun(), self._stream
        if self._batches is None:
            self._batches = stream._read(start.position, start.first)
            # At the exit of the interpreter, too, while the modules of its threads are still there.
            weakref.finalize(self, self._batches.close)
        batch = next(self._batches)
        if get_worker_info() is None:
            stream._tracker.move(batch.after)
        else:
            stream._tracker.check_followed(start.move)
        # Counted from where the stream stands behind it: in worker processes, others read what comes between.
        first = self._workers - 1 if batch.ends_step else batch.slot + self._workers
        self._start = PassStart(batch.after, first, start.move)
        return batch

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._batches is not None:
            self._batches.close()

    def state_dict(self) -> dict[str, Any]:
        """The state behind the last microbatch, also within a step."""
        start = self._begun()
        return IteratorState(
            stream=self._stream._state(start.position),
            rank=self._stream.rank,
            worker=self._worker,
            workers=self._workers,
            next=start.first,
        ).model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same process out of equally many.

        Raises:
            UsageError: it is of another process or rank, or another plan was made since.
        """
        self._start = self._stream._resume(read_iterator_state(state), self._worker, self._workers)
        self._batches = None

    def _begun(self) -> PassStart:
        if self._start is None:
            try:
                self._start = self._stream._tracker.begin()
            except UsageError as error:
                self._start = error  # for good: the stream may be moved for another pass
        if isinstance(self._start, UsageError):
            raise self._start
        return self._start


def refuse_sharding() -> NoReturn:
    """Refuse that another library divides a stream over ranks.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "Accelerate would leave out microbatches of a stream, which holds those of one rank already: prepare model"
        " and optimizer, not the loader, and move batches with batch.to(accelerator.device)"
    )


def _on_a_later_revision(position: Position, fingerprint: str) -> Position:
    """The position with its steps planned on the revision of a fingerprint, from which it was read."""
    if any(part.setting.shuffle.run > 1 for part in position.parts) and not position.begins_epoch:
        raise UsageError(
            "cannot resume: a later revision of the dataset cannot enter within an epoch whose shuffle keeps runs"
            " together, since where samples lay before is not known any more; let it enter between two epochs"
        )
    return position.planned_on(fingerprint)


def _check_shapes(latents: Latents, stages: Sequence[BucketConfig]) -> None:
    for buckets in stages:
        if differs := first_difference(latents.shapes, shapes_of(buckets)):
            raise UsageError(
                f"latents were stored for other buckets: stream.buckets.{differs}; train with the same, make another"
                " version with `reelweave latents`, or set stream.latents=false where the clips are there"
            )
