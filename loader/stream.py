"""A deterministic, resumable stream of equal-shape microbatches, decoded in worker threads."""

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PositiveInt, ValidationError
from torch.utils.data import IterableDataset, get_worker_info

from loader.buckets import Bucket, BucketConfig, assign
from loader.dataset import Dataset, Row
from loader.decode import decode
from loader.errors import RunError, UsageError
from loader.plan import Done, EpochPlan, PlannedMicrobatch, plan_epoch, start_frame
from loader.policy import Division

STATE_VERSION = 3  # of the state and of the plans it counts positions in

_COLUMNS = ["key", "shard", "caption", "frames", "sha256"]


@dataclass(frozen=True, eq=False)
class Microbatch:
    """What one rank trains on at once.

    Attributes:
        bucket: the shape all samples share.
        keys: of the samples.
        captions: of the samples.
        video_BCTHW: uint8 RGB.
        epoch: from 0.
        position: the step within the epoch, from 0.
        weight: B over ``step_samples``; 0 for a filler, which evens out an epoch's last step and repeats
            samples that count elsewhere. The sum of weight x mean loss over the step's microbatches on all ranks is
            the step's mean loss.
        step_samples: samples of the step on all ranks.
        slot: its place among this rank's microbatches of the step, from 0.
        slots: this rank's microbatches of the step; other ranks may have more or fewer.
    """

    bucket: Bucket
    keys: tuple[str, ...]
    captions: tuple[str, ...]
    video_BCTHW: torch.Tensor  # noqa: N815 - tensor names carry their shape
    epoch: int
    position: int
    weight: float
    step_samples: int
    slot: int = 0
    slots: int = 1

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer's turn comes after it."""
        return self.slot + 1 == self.slots


class StreamConfig(BaseModel, frozen=True, extra="forbid"):
    """What is streamed, and how far ahead."""

    buckets: BucketConfig = Field(description="allowed shapes and budgets")
    seed: int = Field(default=0, ge=0, lt=2**64, description="fixes the order and the frames of every epoch")
    workers: PositiveInt = Field(default=4, description="decoding threads")
    prefetch: PositiveInt = Field(default=2, description="microbatches decoded ahead of the one in use")
    microbatches: PositiveInt = Field(
        default=1, description="of a rank in an optimizer step, on average; from 4 on ranks can be balanced"
    )
    policy: Literal["balanced", "dual_constraint"] = Field(
        default="balanced",
        description="balanced: equal work for all ranks; dual_constraint: in shuffled order",
    )
    epochs: PositiveInt | None = Field(default=None, description="passes over the dataset; null is for ever")


class StreamState(BaseModel, frozen=True, extra="forbid", strict=True):
    """Where a stream stands: the next step of the plan, and what the plan was made from.

    ``per_step`` is the microbatches of a step on all ranks, ``done`` what was trained of the epoch in steps of another
    size: pairs of microbatches per step and steps.
    """

    version: int
    epoch: int = Field(ge=0, lt=2**63)
    position: int = Field(ge=0)
    seed: int
    dataset: str
    config: str
    per_step: int = Field(ge=1, le=2**24)
    done: list[Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]] = Field(max_length=256)


class VideoStream(IterableDataset[Microbatch]):
    """The microbatches of one rank, in plan order.

    Iterating goes on from the state and moves it, a step at a time: a stream left in mid-step begins that step
    again. In a ``DataLoader(stream, batch_size=None, num_workers=...)`` each worker process decodes its share and
    the loader restores plan order; the processes then hold copies of this object, so take the state from
    ``state_after(microbatch)``.

    Args:
        dataset: where the samples lie.
        config: what is streamed.
        rank: this data-parallel rank.
        world_size: data-parallel ranks.

    Attributes:
        assignment: each sample's bucket, and the samples that fit none.
        steps_per_epoch: optimizer steps, the same for every rank and epoch.

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
        self.assignment = assign(dataset.plan_index, config.buckets)
        self._division = Division(world_size, config.microbatches, config.policy, config.buckets.counted_cost)
        self.steps_per_epoch = len(plan_epoch(self.assignment, config.seed, 0, self._division))
        self._begin(0, 0, (), self.steps_per_epoch)

    def __iter__(self) -> Iterator[Microbatch]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        pending: deque[_Pending] = deque()
        pool = ThreadPoolExecutor(self.config.workers, thread_name_prefix="decode")
        try:
            for planned in islice(self._planned(), first, None, stride):
                pending.append(self._submit(pool, planned))
                if len(pending) > self.config.prefetch:
                    yield self._yielded(pending.popleft())
            while pending:
                yield self._yielded(pending.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last microbatch this object yielded; a few JSON values."""
        return self._state(*self._next)

    def state_after(self, microbatch: Microbatch) -> dict[str, Any]:
        """The state from which a stream goes on behind ``microbatch``; within a step, from the step's beginning."""
        return self._state(*self._following(microbatch))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this or another rank, in this or another process.

        Raises:
            UsageError: the state is of another dataset, seed, bucket configuration or version, so its
                position counts steps of another plan.
        """
        try:
            loaded = StreamState.model_validate(state)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "all of it"
            raise UsageError(f"not a state of the loader: {key}: {problem['msg']}") from error
        own = self._state(0, 0)
        for key in ("version", "dataset", "seed", "config"):
            saved = getattr(loaded, key)
            if saved != own[key]:
                raise UsageError(
                    f"cannot resume: {key} was {saved} when the state was saved and is {own[key]} now; "
                    "use the same one, or start without a state"
                )
        done = tuple(Done(*part) for part in loaded.done)
        saved_with = plan_epoch(
            self.assignment, self.config.seed, loaded.epoch, Division(loaded.per_step), done
        )
        if loaded.position >= len(saved_with):
            raise UsageError(
                f"cannot resume: position is {loaded.position}, but the epoch has {len(saved_with)} steps"
            )
        position, steps = loaded.position, len(saved_with)
        if loaded.per_step != self._division.per_step:
            done, position = (*done, *([Done(loaded.per_step, position)] if position else [])), 0
            steps = len(plan_epoch(self.assignment, self.config.seed, loaded.epoch, self._division, done))
        self._begin(loaded.epoch, position, done, steps)

    def _planned(self) -> Iterator["_Planned"]:
        first_epoch, first_position = self._next
        for epoch in (
            count(first_epoch) if self.config.epochs is None else range(first_epoch, self.config.epochs)
        ):
            plan = self._plan(epoch)
            for position in range(first_position if epoch == first_epoch else 0, len(plan)):
                own = plan.step(position, self.rank)
                for micro in own.microbatches:
                    yield _Planned(epoch, position, micro, len(own.microbatches), own.samples)

    def _submit(self, pool: ThreadPoolExecutor, planned: "_Planned") -> "_Pending":
        bucket = self.assignment.buckets[planned.micro.bucket]
        rows = planned.micro.rows.tolist()
        samples = [self.dataset.index.slice(row, 1).select(_COLUMNS).to_pylist()[0] for row in rows]
        video_BCTHW = torch.empty(
            (len(rows), 3, bucket.frames, bucket.height, bucket.width), dtype=torch.uint8
        )
        loads = [
            pool.submit(self._load, row, sample, bucket, planned.epoch, video_CTHW)
            for row, sample, video_CTHW in zip(rows, samples, video_BCTHW.numpy(), strict=True)
        ]
        microbatch = Microbatch(
            bucket=bucket,
            keys=tuple(sample["key"] for sample in samples),
            captions=tuple(sample["caption"] for sample in samples),
            video_BCTHW=video_BCTHW,
            epoch=planned.epoch,
            position=planned.position,
            weight=planned.micro.weight,
            step_samples=planned.samples,
            slot=planned.micro.slot,
            slots=planned.slots,
        )
        return _Pending(microbatch, loads)

    def _load(self, row: int, sample: Row, bucket: Bucket, epoch: int, video_CTHW: NDArray[np.uint8]) -> None:
        where = f"sample {sample['key']} in {sample['shard']}"
        try:
            clip = self.dataset.read_member(row, "mp4")
        except FileNotFoundError as error:
            raise RunError(f"{where}: the shard is missing") from error
        if hashlib.sha256(clip).hexdigest() != sample["sha256"]:
            raise RunError(f"{where} is damaged: its clip is not the one whose sha256 index.parquet holds")
        start = start_frame(self.config.seed, epoch, sample["key"], sample["frames"], bucket.frames)
        try:
            frames_THWC = decode(clip, bucket, start)
        except RunError as error:
            raise RunError(f"{where}: {error}") from error
        np.copyto(video_CTHW, frames_THWC.transpose(3, 0, 1, 2))

    def _yielded(self, pending: "_Pending") -> Microbatch:
        for load in pending.loads:
            load.result()
        self._next = self._following(pending.microbatch)
        return pending.microbatch

    def _following(self, microbatch: Microbatch) -> tuple[int, int]:
        epoch, position = microbatch.epoch, microbatch.position
        if not microbatch.ends_step:
            return epoch, position
        steps = self._begun_steps if epoch == self._begun else self.steps_per_epoch
        return (epoch, position + 1) if position + 1 < steps else (epoch + 1, 0)

    def _begin(self, epoch: int, position: int, done: tuple[Done, ...], steps: int) -> None:
        """Goes on at one of the ``steps`` left of an epoch of which something was done in steps of another size."""
        self._next, self._begun, self._done, self._begun_steps = (epoch, position), epoch, done, steps

    def _plan(self, epoch: int) -> EpochPlan:
        done = self._done if epoch == self._begun else ()
        return plan_epoch(self.assignment, self.config.seed, epoch, self._division, done)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        buckets = json.dumps(self.config.buckets.model_dump(mode="json"), sort_keys=True)
        return StreamState(
            version=STATE_VERSION,
            epoch=epoch,
            position=position,
            seed=self.config.seed,
            dataset=self.dataset.fingerprint,
            config=hashlib.sha256(buckets.encode()).hexdigest(),
            per_step=self._division.per_step,
            done=[list(part) for part in self._done] if epoch == self._begun else [],
        ).model_dump()


@dataclass(frozen=True, eq=False)
class _Planned:
    """A microbatch of this rank: where it stands, and what its step holds."""

    epoch: int
    position: int
    micro: PlannedMicrobatch
    slots: int
    samples: int


@dataclass(frozen=True, eq=False)
class _Pending:
    """A microbatch whose video is complete when its loads are."""

    microbatch: Microbatch
    loads: list[Future[None]]
