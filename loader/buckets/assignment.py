"""Dual-constraint buckets: the training shape of each sample and the batch size B of each shape."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from reelweave.loader.base.argument_types import check_type
from reelweave.loader.base.arrays import IndexArray, IntegerArray
from reelweave.loader.base.columns import distinct, parts
from reelweave.loader.buckets.cost import Cost, PowerCost, largest_batch
from reelweave.loader.buckets.frame_sampling import FrameSampling
from reelweave.loader.buckets.tokens import Compression, sequence_length
from reelweave.loader.buckets.unassigned import Unassigned, find_unassigned
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.settings import Settings

Bound = Literal["memory", "compute", "max_batch", "one"]
"""Constraint that decides B: a budget of equation 2, `max_batch`, or the minimum of one sample."""

_SAME_ASPECT = 0.05  # log ratio; 480x832 and 720x1280 are both "16:9" and 0.026 apart


@dataclass(frozen=True, order=True)
class Bucket:
    """Class of samples trained at one shape, in frames and pixels."""

    frames: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"


class Budgets(Settings):
    """Budgets of one microbatch."""

    memory_tokens: PositiveInt = Field(description="M_mem: maximum tokens of a microbatch, B * S")
    compute_budget: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="M_comp: maximum B * S^p of a microbatch; null: no limit"
    )
    exponent: float = Field(default=2.0, ge=1.0, le=3.0, description="p: exponent of a sample's cost S^p")
    cost: Cost | None = Field(
        default=None, description="seconds of a microbatch, fitted to measured steps; null: B * S^p"
    )
    target_step_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="maximum seconds of a microbatch, by its cost; null: no limit"
    )
    max_batch: PositiveInt | None = Field(
        default=None, description="maximum samples of a microbatch; null: no limit"
    )

    @model_validator(mode="after")
    def _one_compute_bound(self) -> Self:
        if self.cost is None and self.target_step_s is not None:
            raise ValueError(
                "target_step_s needs a cost that counts seconds; without one, set compute_budget"
            )
        if self.cost is not None and self.compute_budget is not None:
            raise ValueError("compute_budget counts B * S^p; with a cost, set target_step_s instead")
        return self

    @property
    def counted_cost(self) -> Cost:
        """Cost model of a microbatch: ``cost``, or B * S^p."""
        return self.cost or PowerCost(exponent=self.exponent)

    @property
    def cost_limit(self) -> float | None:
        """Maximum cost of a microbatch, in the unit of ``counted_cost``; None for no limit."""
        return self.compute_budget if self.cost is None else self.target_step_s


class BucketConfig(Budgets):
    """Allowed shapes, and budgets that fix the batch size of each shape."""

    frames: tuple[PositiveInt, ...] = Field(min_length=1, description="allowed numbers of frames")
    sizes: tuple[tuple[PositiveInt, PositiveInt], ...] = Field(
        min_length=1, description="allowed [height, width] in pixels"
    )
    compression: Compression = Field(
        description="pixels per token along each axis, or the name of a model, such as wan"
    )
    max_text_tokens: int = Field(
        ge=0, description="text tokens counted in S for every sample; longer captions are truncated"
    )
    max_upscale: float = Field(
        default=1.25, ge=1.0, description="maximum factor by which a sample is enlarged to fill a size"
    )
    max_crop: float = Field(
        default=0.5, ge=0.0, lt=1.0, description="maximum share of a frame that is cropped away"
    )
    sampling: FrameSampling = Field(
        default=FrameSampling(), description="choice of a bucket's frames from a longer clip"
    )

    @model_validator(mode="after")
    def _no_shape_twice(self) -> Self:
        for name, values in (("frames", self.frames), ("sizes", self.sizes)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} holds one value twice: {list(values)}")
        return self


@dataclass(frozen=True)
class BatchSize:
    """Batch size B of one sequence length, and the constraint that decides it."""

    batch: int
    bound: Bound


@dataclass(frozen=True, eq=False)
class Assignment:
    """Bucket of every sample of an index.

    Attributes:
        buckets: all allowed shapes, sorted.
        lengths: S of each bucket, in tokens.
        batch_sizes: B of each bucket.
        budgets: budgets that B follows from.
        cost: cost model of a microbatch.
        text_tokens: int32 [N], text tokens of each index row.
        max_text_tokens: length in tokens that captions are truncated to.
        bucket_of: int16 [N] (int32 for 2^15 buckets or more), place of each row's bucket in ``buckets``, or -1.
        unassigned: rows with -1, and their reasons.
    """

    buckets: tuple[Bucket, ...]
    lengths: tuple[int, ...]
    batch_sizes: tuple[BatchSize, ...]
    budgets: Budgets
    cost: Cost
    text_tokens: NDArray[np.signedinteger[Any]]
    max_text_tokens: int
    bucket_of: NDArray[np.signedinteger[Any]]
    unassigned: Unassigned

    def drawn_lengths(self) -> IndexArray:
        """Return S of every index row, 0 for rows without a bucket; int64 [N]."""
        # The appended 0 is the entry that -1 selects.
        return np.asarray(np.array([*self.lengths, 0])[self.bucket_of])

    def padded_lengths(self, rows_n: IntegerArray) -> IndexArray:
        """Return S of samples padded to their bucket's length; int64 [n]."""
        return np.asarray(np.array(self.lengths)[self.bucket_of[rows_n]])

    def own_lengths(self, rows_n: IntegerArray) -> IndexArray:
        """Return S of samples with unpadded text; int64 [n]."""
        text_n = np.minimum(self.text_tokens[rows_n], self.max_text_tokens)
        return np.asarray(self.padded_lengths(rows_n) - self.max_text_tokens + text_n)


def bucket_length(bucket: Bucket, config: BucketConfig) -> int:
    """Return S of every sample of the bucket.

    S_text counts as ``max_text_tokens``, not as the longest caption present. B is then safe for every sample and
    depends on the configuration alone, so it does not change when the dataset grows.
    """
    return int(
        sequence_length(
            config.max_text_tokens, bucket.frames, bucket.height, bucket.width, config.compression
        )
    )


def batch_size(length: int, budgets: Budgets) -> BatchSize:
    """Return B = max(1, min(floor(M_mem / S), floor(M_comp / S^p), max_batch)), AdaptiveLoad equation 2.

    With a fitted cost the second bound is the number of samples that fit into ``target_step_s``.

    Args:
        length: S, tokens of one sample.
        budgets: budgets of a microbatch.
    """
    bounds = batch_bounds(length, budgets)
    bound = min(bounds, key=bounds.__getitem__)  # of equal ones the first
    return BatchSize(bounds[bound], bound) if bounds[bound] >= 1 else BatchSize(1, "one")


def batch_bounds(length: int, budgets: Budgets) -> dict[Bound, int]:
    """Return the most samples of S tokens that each constraint allows, 0 where even one exceeds it."""
    bounds: dict[Bound, int] = {"memory": budgets.memory_tokens // length}
    if budgets.cost_limit is not None:
        bounds["compute"] = int(largest_batch(budgets.counted_cost, length, budgets.cost_limit))
    if budgets.max_batch is not None:
        bounds["max_batch"] = budgets.max_batch
    return bounds


def with_cost(assignment: Assignment, cost: Cost) -> Assignment:
    """Return the same samples in the same buckets, with another cost model.

    B changes where the budgets count seconds; where they count B * S^p, only the balance changes.
    """
    if assignment.budgets.cost is not None:
        budgets = assignment.budgets.model_copy(update={"cost": cost})
        sizes = tuple(batch_size(length, budgets) for length in assignment.lengths)
        assignment = replace(assignment, batch_sizes=sizes, budgets=budgets)
    return replace(assignment, cost=cost)


def buckets_of(config: BucketConfig) -> tuple[Bucket, ...]:
    """Return all allowed shapes, sorted."""
    return tuple(Bucket(frames, *size) for frames in sorted(config.frames) for size in sorted(config.sizes))


def shapes_of(config: BucketConfig) -> dict[str, Any]:
    """Return the keys that decide each sample's bucket and frames, as JSON values."""
    values = config.model_dump(
        mode="json", include={"frames", "sizes", "max_upscale", "max_crop", "sampling"}
    )
    return values | {"frames": sorted(values["frames"]), "sizes": sorted(values["sizes"])}


def assign(
    index: PlanIndex,
    config: BucketConfig,
    keep: Callable[[Callable[[], IntegerArray]], IntegerArray] = lambda make: make(),
) -> Assignment:
    """Assign every sample to the bucket that keeps most of it.

    The frame count is the largest allowed one that frame sampling finds in the sample. Only sizes that the sample fills
    within ``max_upscale`` and ``max_crop`` count. Among them the nearest aspect ratio wins (by log ratio; within 5 %
    counts as equal), then the nearest area. Samples without such a bucket are listed with a reason.

    Args:
        index: plan index of the samples.
        config: allowed shapes and budgets.
        keep: function that runs or caches the computation of bucket numbers, such as once per machine.

    Raises:
        UsageError: an argument has a wrong type.
    """
    check_type(index, PlanIndex, "index", "give dataset.plan_index")
    check_type(
        config,
        BucketConfig,
        "config",
        "give a BucketConfig; BucketConfig.model_validate(values) reads a dict",
    )
    frame_counts = sorted(config.frames)
    sizes = sorted(config.sizes)
    buckets = buckets_of(config)
    lengths = tuple(bucket_length(bucket, config) for bucket in buckets)

    # By parts, since temporary arrays of all samples would take several times the index.
    def make() -> IntegerArray:
        bucket_N = np.empty(len(index), np.dtype(np.int16 if len(buckets) < 2**15 else np.int32))
        for part in parts(len(bucket_N)):
            frames_N = config.sampling.available(index.frames[part], index.fps[part])
            frames_place_N = np.searchsorted(frame_counts, frames_N, side="right") - 1
            size_place_N = _nearest_sizes(index.height[part], index.width[part], sizes, config)
            fits_N = (frames_place_N >= 0) & (size_place_N >= 0)
            bucket_N[part] = np.where(fits_N, frames_place_N * len(sizes) + size_place_N, -1)
        return bucket_N

    bucket_N = cast(NDArray[np.signedinteger[Any]], keep(make))
    # Reasons are worked out for samples without a bucket alone.
    rows_X = np.flatnonzero(bucket_N < 0)
    return Assignment(
        buckets=buckets,
        lengths=lengths,
        batch_sizes=tuple(batch_size(length, config) for length in lengths),
        budgets=config,
        cost=config.counted_cost,
        text_tokens=index.text_tokens,
        max_text_tokens=config.max_text_tokens,
        bucket_of=bucket_N,
        unassigned=find_unassigned(
            rows_X,
            config.sampling.available(index.frames[rows_X], index.fps[rows_X]),
            index.height[rows_X],
            index.width[rows_X],
            fewest_frames=frame_counts[0],
            limits=f"enlarging more than {config.max_upscale:g} times or cropping more than {config.max_crop:.0%}",
        ),
    )


def _nearest_sizes(
    height_N: NDArray[np.integer[Any]],
    width_N: NDArray[np.integer[Any]],
    sizes: list[tuple[int, int]],
    config: BucketConfig,
) -> NDArray[np.int64]:
    """Return each sample's place in ``sizes``, or -1; each distinct resolution is decided once."""
    shape_U, place_N = distinct(height_N.astype(np.int64) << 32 | width_N)
    height_U1, width_U1 = (shape_U >> 32)[:, None], (shape_U & 0xFFFFFFFF)[:, None]
    height_K, width_K = np.asarray(sizes, dtype=np.float64).T

    upscale_UK = np.maximum(height_K / height_U1, width_K / width_U1)
    aspect_UK = np.abs(np.log(width_K / height_K) - np.log(width_U1 / height_U1))
    area_UK = np.abs(np.log(height_K * width_K) - np.log(height_U1 * width_U1))
    # Cover and crop keeps min(ratio) / max(ratio) of a frame: exp(-|log ratio|).
    fits_UK = (upscale_UK <= config.max_upscale) & (1 - np.exp(-aspect_UK) <= config.max_crop)

    aspect_UK = np.where(fits_UK, aspect_UK, np.inf)
    near_UK = fits_UK & (aspect_UK <= aspect_UK.min(axis=1, keepdims=True) + _SAME_ASPECT)
    best_U = np.where(near_UK, area_UK, np.inf).argmin(axis=1)
    return np.where(fits_UK.any(axis=1), best_U, -1)[place_N]
