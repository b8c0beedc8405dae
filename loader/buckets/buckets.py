"""Dual-constraint buckets: which shape a sample trains at, and how many make a microbatch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PositiveInt, model_validator

from loader.base.arrays import Numbers, Places
from loader.base.columns import distinct, parts
from loader.buckets.cost import Cost, PowerCost, largest_batch
from loader.buckets.frame_sampling import FrameSampling
from loader.buckets.tokens import Compression, sequence_length
from loader.buckets.unassigned import Unassigned, unassigned
from loader.dataset.plan_index import PlanIndex

Bound = Literal["memory", "compute", "max_batch", "one"]
"""What decides B: a budget of equation 2, the configured limit, or that one sample must always run."""

_SAME_ASPECT = 0.05  # log ratio; 480x832 and 720x1280 are both "16:9" and 0.026 apart


@dataclass(frozen=True, order=True)
class Bucket:
    """A class of samples trained at one shape, in frames and pixels."""

    frames: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"


class Budgets(BaseModel, frozen=True, extra="forbid"):
    """What one microbatch may hold."""

    memory_tokens: PositiveInt = Field(description="M_mem: tokens of one microbatch at most")
    compute_budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="M_comp: B * S^p of one microbatch at most; null is no bound"
    )
    exponent: float = Field(default=2.0, ge=1.0, le=3.0, description="p, the exponent of a sample's cost S^p")
    cost: Cost | None = Field(
        default=None, description="seconds of a microbatch, fitted to measured steps; null counts B * S^p"
    )
    target_step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="seconds of one microbatch at most, by its cost; null is no bound"
    )
    max_batch: PositiveInt | None = Field(default=None, description="samples of one microbatch at most")

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
        """What a microbatch costs: ``cost``, or B * S^p."""
        return self.cost or PowerCost(exponent=self.exponent)

    @property
    def cost_limit(self) -> float | None:
        """The most a microbatch may cost, in the unit of ``counted_cost``; None is no bound."""
        return self.compute_budget if self.cost is None else self.target_step_s


class BucketConfig(Budgets, frozen=True, extra="forbid"):
    """The allowed shapes and the budgets that fix a microbatch's size at each."""

    frames: tuple[PositiveInt, ...] = Field(min_length=1, description="allowed frame counts")
    sizes: tuple[tuple[PositiveInt, PositiveInt], ...] = Field(
        min_length=1, description="allowed [height, width] in pixels"
    )
    compression: Compression = Field(description="pixels per token along each axis")
    max_text_tokens: int = Field(
        ge=0, description="text tokens counted for every sample; longer captions are cut"
    )
    max_upscale: float = Field(
        default=1.25, ge=1.0, description="how far a sample may be enlarged to fill a size"
    )
    max_crop: float = Field(
        default=0.5, ge=0.0, lt=1.0, description="share of a frame that cropping may remove"
    )
    sampling: FrameSampling = Field(
        default=FrameSampling(), description="which frames of a longer clip are trained on"
    )

    @model_validator(mode="after")
    def _no_shape_twice(self) -> Self:
        for name, values in (("frames", self.frames), ("sizes", self.sizes)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} holds one value twice: {list(values)}")
        return self


@dataclass(frozen=True)
class BatchSize:
    """How many samples of one length make a microbatch, and what decides it."""

    batch: int
    bound: Bound


@dataclass(frozen=True, eq=False)
class Assignment:
    """The bucket of every sample of an index.

    Attributes:
        buckets: all allowed shapes, sorted.
        lengths: S of each bucket, in tokens.
        batch_sizes: B of each bucket.
        budgets: what B was counted with.
        cost: what a microbatch costs.
        text_tokens: int32 [N], of each index row.
        max_text_tokens: longer captions are cut.
        bucket_of: int16 [N], int32 where there are so many buckets: for each index row a place in ``buckets``, or -1.
        unassigned: rows that have -1, and why.
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

    def drawn_lengths(self) -> Places:
        """S of every row of the index, 0 where it has no bucket; int64 [N]."""
        # The last entry is that of -1.
        return np.asarray(np.array([*self.lengths, 0])[self.bucket_of])

    def padded_lengths(self, rows_n: Numbers) -> Places:
        """S of samples as their buckets have it; int64 [n]."""
        return np.asarray(np.array(self.lengths)[self.bucket_of[rows_n]])

    def own_lengths(self, rows_n: Numbers) -> Places:
        """S of samples without padding, text as long as it is; int64 [n]."""
        text_n = np.minimum(self.text_tokens[rows_n], self.max_text_tokens)
        return np.asarray(self.padded_lengths(rows_n) - self.max_text_tokens + text_n)


def bucket_length(bucket: Bucket, config: BucketConfig) -> int:
    """S of every sample of the bucket.

    S_text counts as ``max_text_tokens``, not as the longest caption present: B is then safe for every
    sample and depends on the configuration alone, so that it does not move when the dataset grows.
    """
    return int(
        sequence_length(
            config.max_text_tokens, bucket.frames, bucket.height, bucket.width, config.compression
        )
    )


def batch_size(length: int, budgets: Budgets) -> BatchSize:
    """B = max(1, min(floor(M_mem / S), floor(M_comp / S^p))), AdaptiveLoad equation 2, and ``max_batch``.

    With a fitted cost the second bound is the samples that fit into ``target_step_s``.

    Args:
        length: S, tokens of one sample.
        budgets: of a microbatch.
    """
    bounds: list[tuple[int, Bound]] = [(budgets.memory_tokens // length, "memory")]
    if budgets.cost_limit is not None:
        bounds.append((int(largest_batch(budgets.counted_cost, length, budgets.cost_limit)), "compute"))
    if budgets.max_batch is not None:
        bounds.append((budgets.max_batch, "max_batch"))
    batch, bound = min(bounds, key=lambda pair: pair[0])
    return BatchSize(batch, bound) if batch >= 1 else BatchSize(1, "one")


def with_cost(assignment: Assignment, cost: Cost) -> Assignment:
    """The same samples in the same buckets, planned with another cost.

    B follows where the budgets count seconds too; where they count B * S^p, only the balance follows.
    """
    if assignment.budgets.cost is not None:
        budgets = assignment.budgets.model_copy(update={"cost": cost})
        sizes = tuple(batch_size(length, budgets) for length in assignment.lengths)
        assignment = replace(assignment, batch_sizes=sizes, budgets=budgets)
    return replace(assignment, cost=cost)


def buckets_of(config: BucketConfig) -> tuple[Bucket, ...]:
    """All allowed shapes, sorted."""
    return tuple(Bucket(frames, *size) for frames in sorted(config.frames) for size in sorted(config.sizes))


def shapes_of(config: BucketConfig) -> dict[str, Any]:
    """What of a configuration decides each sample's bucket and frames, as JSON values."""
    values = config.model_dump(
        mode="json", include={"frames", "sizes", "max_upscale", "max_crop", "sampling"}
    )
    return values | {"frames": sorted(values["frames"]), "sizes": sorted(values["sizes"])}


def assign(
    index: PlanIndex,
    config: BucketConfig,
    keep: Callable[[Callable[[], Numbers]], Numbers] = lambda make: make(),
) -> Assignment:
    """Gives every sample the bucket that keeps most of it.

    The frame count is the largest allowed one not above what frame sampling finds in the sample. Of the
    sizes it can fill without more than ``max_upscale`` and ``max_crop``, it gets the one of nearest aspect
    ratio (by log ratio; within 5 % counts as equal), then of nearest area. A sample without such a bucket is
    listed with its reason.

    Args:
        index: of the samples.
        config: the allowed shapes.
        keep: takes what finds each sample's bucket, and returns what it found, perhaps in another process.
    """
    frame_counts = sorted(config.frames)
    sizes = sorted(config.sizes)
    buckets = buckets_of(config)
    lengths = tuple(bucket_length(bucket, config) for bucket in buckets)

    def make() -> Numbers:
        bucket_N = np.empty(len(index), np.dtype(np.int16 if len(buckets) < 2**15 else np.int32))
        for part in parts(len(bucket_N)):
            frames_N = config.sampling.available(index.frames[part], index.fps[part])
            frames_place_N = np.searchsorted(frame_counts, frames_N, side="right") - 1
            size_place_N = _nearest_sizes(index.height[part], index.width[part], sizes, config)
            fits_N = (frames_place_N >= 0) & (size_place_N >= 0)
            bucket_N[part] = np.where(fits_N, frames_place_N * len(sizes) + size_place_N, -1)
        return bucket_N

    bucket_N = cast(NDArray[np.signedinteger[Any]], keep(make))
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
        unassigned=unassigned(
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
    """For each sample a place in ``sizes``, or -1; resolutions are few, so each is decided once."""
    shape_U, place_N = distinct(height_N.astype(np.int64) << 32 | width_N)
    height_U1, width_U1 = (shape_U >> 32)[:, None], (shape_U & 0xFFFFFFFF)[:, None]
    height_K, width_K = np.asarray(sizes, dtype=np.float64).T

    upscale_UK = np.maximum(height_K / height_U1, width_K / width_U1)
    aspect_UK = np.abs(np.log(width_K / height_K) - np.log(width_U1 / height_U1))
    area_UK = np.abs(np.log(height_K * width_K) - np.log(height_U1 * width_U1))
    # Cover and crop keeps the smaller ratio over the larger one of a frame: exp(-|log ratio|).
    fits_UK = (upscale_UK <= config.max_upscale) & (1 - np.exp(-aspect_UK) <= config.max_crop)

    aspect_UK = np.where(fits_UK, aspect_UK, np.inf)
    near_UK = fits_UK & (aspect_UK <= aspect_UK.min(axis=1, keepdims=True) + _SAME_ASPECT)
    best_U = np.where(near_UK, area_UK, np.inf).argmin(axis=1)
    return np.where(fits_UK.any(axis=1), best_U, -1)[place_N]
