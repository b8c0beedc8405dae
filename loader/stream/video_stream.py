"""Deterministic, resumable stream of equal-shape microbatches."""

import logging
from collections.abc import Generator
from itertools import islice
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from reelweave.loader.base.argument_types import check_protocol, check_type, whole_number
from reelweave.loader.batch import Batch, Microbatch, Pack, UpcomingMicrobatch
from reelweave.loader.batch_rows import keep_open
from reelweave.loader.blend.selected import select
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Assignment, Bucket, buckets_of
from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, MeasuredCost, PowerCost
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import Position
from reelweave.loader.read.cache import DiskCache
from reelweave.loader.read.exclude import excluded_rows
from reelweave.loader.read.pipeline import ReadPipeline
from reelweave.loader.read.sample_reader import SampleReader
from reelweave.loader.read.share import NO_WORKERS, Share
from reelweave.loader.read.stored import check_clips, check_shapes
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.simulation.idle_forecast import forecast_idle
from reelweave.loader.stream.captions import CaptionChoice
from reelweave.loader.stream.checks.own_rank import warn_of_other_ranks
from reelweave.loader.stream.checks.partial import log_partial
from reelweave.loader.stream.checks.selection import log_selection
from reelweave.loader.stream.checks.unassigned import check_unassigned, log_unassigned
from reelweave.loader.stream.curriculum_plans import plan_keys
from reelweave.loader.stream.cursor.resume_position import dataset_names
from reelweave.loader.stream.cursor.stream_cursor import StreamCursor
from reelweave.loader.stream.lengths import (
    EpochProgress,
    has_ended,
    microbatches_in_all,
    progress_of,
    steps_of_epoch,
)
from reelweave.loader.stream.rank_microbatches import rank_microbatches
from reelweave.loader.stream.stream_iterator import StreamIterator
from reelweave.loader.stream.upcoming import upcoming_step

_log = logging.getLogger(__name__)

_GIVE_SOURCE = 'give a dataset or a blend, such as open_dataset("URI") or open_source("URI")'
_GIVE_BATCH = "give the last batch of the stream that was used; of a step it is step.batches[-1]"


class VideoStream(IterableDataset[Microbatch | Pack]):
    """Microbatches of one rank, in plan order.

    Iteration continues from the state and advances it, step by step; a stream left within a step repeats that step. In
    a ``DataLoader(stream, batch_size=None, num_workers=...)`` each worker process decodes its share, and the loader
    restores plan order. The workers hold copies of this object, which cannot know which of their batches were used:
    call ``advance(batch)``, or take states from ``state_after(batch)``.

    A sample that is damaged, missing or undecodable is reported in `Microbatch.bad`, and replaced by the next one of
    its bucket in the plan.

    Args:
        source: a dataset, or a blend of several (`reelweave.loader.blend.open_source`). Of a selection
            (`StreamConfig.where` and others) the stream's own source is a blend that draws no more than it.
        config: configuration of the stream.
        rank: this data-parallel rank.
        world_size: number of data-parallel ranks.
        share: model-parallel group whose ranks read this stream together; all of them have the same ``rank``.

    Attributes:
        cursor: where the stream stands; `advance` and `load_state_dict` move it.
        excluded: int64, index rows of samples that are not read (`StreamConfig.exclude`).
        steps_per_epoch: optimizer steps of the first epoch if nothing changes it, equal on all ranks.

    Raises:
        UsageError: an argument has a wrong type, the rank does not exist, the buckets hold fewer samples than ranks or
            a smaller share of them than was asked for, the stored latents belong to other buckets, the clips to read
            were left out, or no dataset has captions of a name.
    """

    def __init__(
        self,
        source: SampleSource,
        config: StreamConfig,
        rank: int = 0,
        world_size: int = 1,
        share: Share | None = None,
    ) -> None:
        check_protocol(source, "draws", "source", _GIVE_SOURCE)
        check_type(
            config,
            StreamConfig,
            "config",
            "give a StreamConfig; StreamConfig.model_validate(values) reads a dict",
        )
        rank = whole_number(rank, "rank", "give the rank as an integer")
        world_size = whole_number(world_size, "world_size", "give the number of ranks as an integer")
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} does not exist in a world of {world_size} ranks")
        if share is None:
            warn_of_other_ranks(rank, world_size)
        source = select(source, config.selection)
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.share = share
        self.cursor = StreamCursor(source, config, rank, world_size)
        keep_open(source)
        # Refuse before a sample is read what cannot be: shapes of latents, sizes of clips, too many without a bucket.
        if config.latents and source.latents is not None:
            check_shapes(source.latents, self.cursor.plans.buckets)
        elif config.decode and not config.latents:
            check_clips(source, self.shapes)
        self.excluded = excluded_rows(source, config.exclude, says=rank == 0)
        choice = CaptionChoice(source, config)
        check_unassigned(source, self.cursor.plans, config.max_unassigned_share)
        # Say once, on the first rank, what the plan leaves out or loses.
        plan = self.cursor.plans.plan(self.cursor.position)
        if rank == 0:
            log_selection(source)
            log_unassigned(source, self.cursor.plans)
            log_partial(source, self.cursor.plans)
            choice.log_missing()
        self.steps_per_epoch = len(plan)
        forecasts = rank == 0 and world_size > 1 and config.policy == "balanced" and config.regime != "slot"
        if forecasts and (advice := forecast_idle(plan).advice()):
            _log.warning("%s", advice)

    @property
    def source(self) -> SampleSource:
        """Dataset or blend, in the revision that the stream reads now."""
        return self.cursor.source

    @property
    def assignment(self) -> Assignment:
        """Assignment of samples to buckets at the current position, with the samples that fit none."""
        return self.cursor.plans.assignment(self.cursor.position.part.setting)

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """All shapes that the stream may give, of every stage of its curriculum, sorted."""
        return tuple(sorted({bucket for stage in self.cursor.plans.buckets for bucket in buckets_of(stage)}))

    def __iter__(self) -> StreamIterator:
        return StreamIterator(self.cursor, self._read)

    def __len__(self) -> int:
        """Return the number of this rank's microbatches in all epochs, those before the current position included.

        Raises:
            NoLengthError: the stream has no end, or only its steps can be counted in advance.
        """
        return microbatches_in_all(self.cursor.plans, self.config, self.cursor.position)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last yielded microbatch, as a few JSON values.

        Raises:
            UsageError: worker processes of a DataLoader read the stream.
        """
        self.cursor.check_unread()
        return self.cursor.state(self.cursor.position)

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """Return the state from which a stream continues behind ``batch``; within a step, the step's beginning."""
        check_type(batch, Batch, "batch", _GIVE_BATCH)
        return self.cursor.state(batch.after)

    def advance(self, batch: Batch) -> None:
        """Continue behind a batch that DataLoader workers read; within a step, from the step's beginning.

        Args:
            batch: last used batch; its pass is not disturbed.
        """
        check_type(batch, Batch, "batch", _GIVE_BATCH)
        self.cursor.move(batch.after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of this or another rank, in this or another process.

        Args:
            state: state of a stream, or of a StatefulDataLoader around one with any number of worker processes.

        Raises:
            UsageError: the state belongs to another dataset, seed, bucket configuration or version, so its position
                counts steps of another plan. Or the epoch has too many settings for a state.
        """
        check_type(
            state, dict, "state", "give what stream.state_dict() or stream.state_after(batch) returned"
        )
        self.cursor.load(state)

    def adopt(self, source: SampleSource) -> None:
        """Continue with a later revision of the dataset, or of datasets of the blend; call it on every rank.

        Call it between the same two steps. The rest of the epoch is planned anew: each added sample is trained on once
        in it, removed samples are not; in a blend the draws of the changed datasets go on with the samples that are
        there. An iterator in use follows the old plan and is refused from then on; make a new one.

        Args:
            source: the same dataset or blend, opened again.

        Raises:
            UsageError: `source` is no later revision, or has no record of the current one; the stream stays as it was.
        """
        check_protocol(source, "draws", "source", _GIVE_SOURCE)
        source = select(source, self.config.selection)
        excluded = excluded_rows(source, self.config.exclude, says=self.rank == 0)
        CaptionChoice(source, self.config)  # which refuses names that the revision has no more
        self.cursor.adopt(source)
        self.excluded = excluded
        keep_open(source)

    @property
    def cost(self) -> Cost:
        """Cost model that microbatches are planned with."""
        return self.assignment.cost

    def recalibrate(self, cost: Cost) -> bool:
        """Plan with another cost from the current position on; call it on every rank between the same two steps.

        An iterator in use follows the old plan and is refused from then on; make a new one. Returns False without any
        change if the epoch has seen so many costs that its state would exceed its bounds.

        Args:
            cost: seconds of a microbatch (`reelweave.loader.buckets.recalibrate`).
        """
        check_type(
            cost,
            (LinearQuadraticCost, PowerCost, MeasuredCost),
            "cost",
            "give a LinearQuadraticCost, a PowerCost or a MeasuredCost",
        )
        return self.cursor.recalibrate(cost)

    def steps_of_epoch(self, position: Position | None = None) -> int:
        """Return the number of steps of an epoch, finished ones included; 0 after the last epoch.

        Args:
            position: any position in the epoch; None is the current one.
        """
        return steps_of_epoch(self.cursor.plans, self.config, position or self.cursor.position)

    def is_over(self, position: Position) -> bool:
        """Return whether the stream has no step behind a position; rank 0 logs a warning if so."""
        ended = has_ended(self.cursor.plans, self.config, position)
        if ended and self.rank == 0:
            _log.warning(
                "a pass over a stream gives nothing: its epochs are over (stream.epochs=%s). For an evaluation after"
                " every epoch read with a StepLoader(stream, repeats=True)",
                self.config.epochs,
            )
        return ended

    def epoch_progress(self) -> EpochProgress:
        """Return the progress of the current epoch."""
        self.cursor.check_unread()
        return progress_of(self.cursor.plans, self.cursor.position)

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        """Return the microbatches of all ranks in the next step, rank after rank, without opening a file.

        None at the end of the stream, or if the next plan has not been made by reading yet.
        """
        self.cursor.check_unread()
        return upcoming_step(self.cursor.plans, self.cursor.position, self.config.epochs, self.latents)

    def _agree(self, share: Share) -> None:
        if get_worker_info() is not None:
            raise UsageError(NO_WORKERS)
        alike = {"epochs", "decode", "max_bad", "max_bad_share", "captions", "caption_dropout"}
        config = self.config.model_dump(include=alike)
        share.agree(self.state_dict() | config | {"rank": self.rank, "world_size": self.world_size})

    def _read(self, position: Position, first: int) -> Generator[Microbatch | Pack, None, None]:
        worker = get_worker_info()
        if self.share is not None:
            self._agree(self.share)
        if worker is None and self.is_over(position):
            return
        pin = self.config.pin_memory and worker is None and torch.cuda.is_available()
        cache_config = self.config.cache
        cache = None if cache_config is None else DiskCache(cache_config.folder, cache_config.max_bytes)
        stride = 1 if worker is None else worker.num_workers
        microbatches = islice(
            rank_microbatches(self.cursor.plans, self.config, self.rank, position), first, None, stride
        )
        with ReadPipeline(
            SampleReader(self.source, cache, self.excluded),
            self.config,
            pin,
            self.share,
            CaptionChoice(self.source, self.config),
        ) as pipeline:
            yield from pipeline.run(microbatches)

    @property
    def generator(self) -> NoReturn:
        """Refuse Accelerate's wrapping of a prepared DataLoader, which reads this attribute before it shards a dataset.

        Raises:
            UsageError: always.
        """
        refuse_sharding()

    def set_epoch(self, *_: int) -> NoReturn:
        """Refuse to be read by a loader that Accelerate prepared, which calls this first.

        On several ranks it deals out one rank's batches or leaves some out. On one it reads a batch ahead, so that a
        saved state would stand behind a step that was not trained.

        Raises:
            UsageError: always.
        """
        refuse_sharding()

    @property
    def latents(self) -> Latents | None:
        """Description of the stored latents and contexts in the microbatches; None if there are none."""
        return self.source.latents if self.config.latents and self.config.decode else None

    @property
    def plan_keys(self) -> dict[str, Any]:
        """Keys of the configuration that plans follow from, as JSON values: a state is resumed with the same ones."""
        return plan_keys(self.config)

    @property
    def dataset_names(self) -> list[str]:
        """Places, revisions and sizes of the datasets, for people: a state holds their fingerprints."""
        return dataset_names(self.source)


def refuse_sharding() -> NoReturn:
    """Refuse sharding of a stream by another library.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "Accelerate would leave out microbatches of a stream, which holds those of one rank already, or read them"
        " ahead: prepare model and optimizer, not the loader, and move batches with batch.to(accelerator.device). With"
        " transformers' Trainer let get_train_dataloader return a StepLoader(stream)"
    )
