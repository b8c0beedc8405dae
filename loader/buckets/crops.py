"""Share of a sample's picture that is cropped away where it fills its bucket."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, Floats
from reelweave.loader.base.columns import parts
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset.plan_index import PlanIndex

LARGE_CROP = 0.25
"""Share of a picture above which a crop is counted."""


@dataclass(frozen=True)
class Crops:
    """Samples that lose much of their picture.

    Attributes:
        samples: number of samples that lose more than ``LARGE_CROP``.
        largest: largest share that one of them loses.
    """

    samples: int
    largest: float

    @property
    def words(self) -> str:
        """Clause that says how much the crop takes off the pictures."""
        share = f"more than {LARGE_CROP:.0%} of their picture"
        return f"{share} to the crop that fills their size, at most {self.largest:.0%}"


def cover_size(own_height: int, own_width: int, height: int, width: int) -> tuple[int, int]:
    """Return the smallest size of a picture's aspect ratio that covers a target size; its centre is what trains."""
    scale = max(height / own_height, width / own_width)
    return max(height, round(own_height * scale)), max(width, round(own_width * scale))


def large_crops(index: PlanIndex, assignment: Assignment, chosen_N: Flags | None = None) -> Crops:
    """Count the samples that lose more than ``LARGE_CROP`` of their picture.

    Args:
        index: plan index of the samples.
        assignment: bucket of every sample.
        chosen_N: bool [N], True for the rows that count; None for all.
    """
    aspect_U = np.array([np.log(bucket.width / bucket.height) for bucket in assignment.buckets] + [0.0])
    samples, largest = 0, 0.0
    for part in parts(len(assignment.bucket_of)):
        bucket_n = assignment.bucket_of[part]
        counts_n = (bucket_n >= 0) & (True if chosen_N is None else chosen_N[part])
        lost_n = _measure_cropped(index.height[part], index.width[part], aspect_U[bucket_n])
        lost_n = lost_n[counts_n & (lost_n > LARGE_CROP)]
        samples, largest = samples + len(lost_n), max(largest, float(lost_n.max(initial=0)))
    return Crops(samples, largest)


def _measure_cropped(height_n: NDArray[Any], width_n: NDArray[Any], aspect_n: Floats) -> Floats:
    """Return the share of pictures that covering a size of another aspect (log of width over height) crops away."""
    own_n = np.log(np.maximum(width_n, 1)) - np.log(np.maximum(height_n, 1))
    return np.asarray(1 - np.exp(-np.abs(own_n - aspect_n)))
