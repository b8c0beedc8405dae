"""An epoch as a stream of microbatches, before any of them has a rank."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loader.buckets import Assignment, BucketConfig, assign
from loader.dataset.plan_index import PlanIndex
from loader.draws import words
from loader.errors import UsageError
from loader.microbatches import Microbatches
from loader.plan import MICROBATCHES, SAMPLES, cut


@dataclass(frozen=True, eq=False)
class EpochStream:
    """The shuffled microbatches of a dataset, epoch after epoch.

    Attributes:
        index: of the dataset.
        assignment: each row's bucket.
        max_text_tokens: longer captions are cut.
        seed: of the stream, 0 to 2^64 - 1.
    """

    index: PlanIndex
    assignment: Assignment
    max_text_tokens: int
    seed: int

    def epoch(self, epoch: int, repeated: int = 1) -> Microbatches:
        """All microbatches of an epoch in order; a pure function.

        Args:
            epoch: from 0.
            repeated: as many in a row have one bucket; what is left over of each bucket comes last.
        """
        return _epoch(self, epoch, repeated)

    def step(self, step: int, count: int, repeated: int = 1) -> Microbatches:
        """The ``count`` microbatches of a step; steps do not reach over the end of an epoch.

        Raises:
            UsageError: an epoch has fewer.
        """
        held = len(self.epoch(0, repeated))
        if held < count:
            raise UsageError(
                f"the dataset gives {held} microbatches in an epoch, and a step takes {count};"
                " use fewer ranks or microbatches"
            )
        epoch, place = divmod(step, held // count)
        return self.epoch(epoch, repeated).where(slice(place * count, (place + 1) * count))


def epoch_stream(index: PlanIndex, config: BucketConfig, seed: int) -> EpochStream:
    """The stream of a dataset under a bucket configuration."""
    return EpochStream(index, assign(index, config), config.max_text_tokens, seed)


@lru_cache(maxsize=2)
def _epoch(stream: EpochStream, epoch: int, repeated: int) -> Microbatches:
    assignment, most_text = stream.assignment, stream.max_text_tokens
    rows_N, pieces_M3 = cut(assignment, words(stream.seed, epoch, SAMPLES, len(assignment.bucket_of)))
    words_M = words(stream.seed, epoch, MICROBATCHES, len(pieces_M3))
    start_M, batch_M, bucket_M = pieces_M3[_order(pieces_M3[:, 2], words_M, repeated)].T
    text_N = np.minimum(stream.index.text_tokens[rows_N], most_text)
    reach_N = np.concatenate([[0], np.cumsum(text_N)])
    length_M = np.array(assignment.lengths)[bucket_M]
    image_K = np.array([bucket.frames == 1 for bucket in assignment.buckets])
    return Microbatches(
        bucket=bucket_M,
        batch=batch_M,
        length=length_M,
        tokens=batch_M * (length_M - most_text) + reach_N[start_M + batch_M] - reach_N[start_M],
        images=np.where(image_K[bucket_M], batch_M, 0),
    )


def _order(bucket_M: NDArray[np.int64], words_M: NDArray[np.uint64], repeated: int) -> NDArray[np.intp]:
    """Shuffled; with ``repeated``, runs of one bucket are shuffled as wholes, and what fills no run comes last."""
    if repeated == 1:
        return np.argsort(words_M, kind="stable")
    by_bucket = np.lexsort((words_M, bucket_M))
    first = np.searchsorted(bucket_M[by_bucket], bucket_M[by_bucket])
    place = np.arange(len(by_bucket)) - first  # within the bucket
    held = np.bincount(bucket_M)[bucket_M[by_bucket]]
    left_over = place >= held // repeated * repeated
    # A run goes by the word of its first microbatch.
    key = words_M[by_bucket[np.arange(len(by_bucket)) - place % repeated]]
    return by_bucket[np.lexsort((place, key, left_over))]
