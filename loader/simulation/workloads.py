"""Named mixtures of sample lengths, for planning without a dataset."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.philox import uniform
from reelweave.loader.buckets.assignment import BatchSize, Bucket, Budgets, batch_size
from reelweave.loader.buckets.tokens import COMPRESSIONS, Compression, visual_tokens
from reelweave.loader.plan.microbatches import Microbatches

_CAPTIONS = (77, 294)  # tokens; B is computed for the longest caption, so no microbatch exceeds M_mem


@dataclass(frozen=True)
class Workload:
    """Mixture of sample shapes and caption lengths.

    Attributes:
        about: description for reports.
        buckets: shapes of the samples.
        shares: share of the samples per bucket; their sum is 1.
        text_tokens: minimum and maximum tokens of a caption, uniformly distributed.
        compression: pixels per token along each axis.
        budgets: M_mem, M_comp and p.
    """

    about: str
    buckets: tuple[Bucket, ...]
    shares: tuple[float, ...]
    text_tokens: tuple[int, int]
    compression: Compression
    budgets: Budgets

    def visual_tokens(self) -> NDArray[np.int64]:
        """Return S_visual of each bucket."""
        shapes = np.array([(bucket.frames, bucket.height, bucket.width) for bucket in self.buckets])
        return visual_tokens(shapes[:, 0], shapes[:, 1], shapes[:, 2], self.compression)

    def batch_sizes(self, budgets: Budgets) -> tuple[BatchSize, ...]:
        """Return B of each bucket for the longest caption, to which microbatches may be padded."""
        lengths = self.visual_tokens() + self.text_tokens[1]
        return tuple(batch_size(int(length), budgets) for length in lengths)

    def draw(
        self, batch_sizes: Sequence[BatchSize], seed: int, step: int, count: int, repeated: int = 1
    ) -> Microbatches:
        """Return one step's microbatches from a shuffled stream of samples; a pure function.

        A bucket fills a microbatch every B samples, so its microbatches have probability share / B, normalized.

        Args:
            batch_sizes: B of each bucket.
            seed: seed of the stream, 0 to 2^64 - 1.
            step: step of the stream.
            count: number of microbatches.
            repeated: number of consecutive microbatches of one bucket, a divisor of ``count``.
        """
        # A bucket for each microbatch, or for several that follow each other.
        draws = uniform(seed, step, 0, count // repeated)
        batch_K = np.array([size.batch for size in batch_sizes])
        chance_K = np.array(self.shares) / batch_K
        reach_K = np.cumsum(chance_K) / chance_K.sum()
        bucket_M = np.repeat(np.searchsorted(reach_K, draws, side="right"), repeated)
        bucket_M = np.minimum(bucket_M, len(self.buckets) - 1)
        batch_M = batch_K[bucket_M]
        # Lengths of captions, drawn evenly; a microbatch is as long as its longest.
        fewest, max_tokens = self.text_tokens
        text_N = fewest + np.floor(
            uniform(seed, step, 1, int(batch_M.sum())) * (max_tokens - fewest + 1)
        ).astype(np.int64)
        first_M = np.cumsum(batch_M) - batch_M
        visual_M = self.visual_tokens()[bucket_M]
        image_K = np.array([bucket.frames == 1 for bucket in self.buckets])
        return Microbatches(
            bucket=bucket_M,
            batch=batch_M,
            length=visual_M + np.maximum.reduceat(text_N, first_M),
            tokens=batch_M * visual_M + np.add.reduceat(text_N, first_M),
            images=np.where(image_K[bucket_M], batch_M, 0),
        )

    def samples(self, seed: int, tokens: int, step: int) -> Microbatches:
        """Return samples of a part of the stream, as microbatches of B = 1; a pure function.

        Args:
            seed: seed of the stream, 0 to 2^64 - 1.
            tokens: approximate tokens of a part.
            step: number of the part.
        """
        mean = float(self.visual_tokens() @ np.array(self.shares)) + sum(self.text_tokens) / 2
        alone = (BatchSize(1, "max_batch"),) * len(self.buckets)
        return self.draw(alone, seed, step, math.ceil(tokens / mean))


def _koala_wide() -> Workload:
    sizes = {(352, 640): 0.5, (480, 832): 0.35, (720, 1280): 0.15}
    frames = range(13, 130, 4)
    images = (512, 768, 1024)
    shares = {
        Bucket(frame_count, *size): 0.7 * share / len(frames)
        for size, share in sizes.items()
        for frame_count in frames
    }
    shares |= {Bucket(1, side, side): 0.3 / len(images) for side in images}
    return Workload(
        about="Koala-36M at 352x640, 480p and 720p, 13 to 129 frames, and 30 % images",
        buckets=tuple(shares),
        shares=tuple(shares.values()),
        text_tokens=_CAPTIONS,
        compression=COMPRESSIONS["adaptiveload"],
        # At this M_comp, 16 ranks under the dual constraint alone idle least.
        budgets=Budgets(memory_tokens=144_000, compute_budget=3.4e9),
    )


def _adaptiveload() -> Workload:
    frames = range(69, 130, 4)
    return Workload(
        about="480p videos of 69 to 129 frames, as narrow as the mixture of AdaptiveLoad must have been",
        buckets=tuple(Bucket(frame_count, 480, 832) for frame_count in frames),
        shares=(1 / len(frames),) * len(frames),
        text_tokens=_CAPTIONS,
        compression=COMPRESSIONS["adaptiveload"],
        # At this M_comp, too, 16 ranks under the dual constraint alone idle least.
        budgets=Budgets(memory_tokens=144_000, compute_budget=52_000.0**2),
    )


WORKLOADS = {"koala-wide": _koala_wide(), "adaptiveload": _adaptiveload()}
"""Workloads by name."""
