"""Clips that train as single frames, since the next larger bucket has more frames than they offer."""

from dataclasses import dataclass

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.buckets.assignment import Assignment, BucketConfig
from reelweave.loader.dataset.plan_index import PlanIndex


@dataclass(frozen=True, eq=False)
class Stills:
    """Clips of several frames in buckets of one frame.

    Attributes:
        rows: int64 [X], their index rows, rising.
        fewest_frames: smallest number of frames that one of them offers.
        most_frames: largest such number.
        next_frames: number of frames of the next larger bucket.
    """

    rows: IndexArray
    fewest_frames: int
    most_frames: int
    next_frames: int

    @property
    def words(self) -> str:
        """Number of frames that they offer, and that would be needed."""
        few, many = self.fewest_frames, self.most_frames
        frames = str(many) if few == many else f"{few} to {many}"
        return f"they offer {frames} frames, and the next bucket has {self.next_frames}"


def stills(
    index: PlanIndex, config: BucketConfig, assignment: Assignment, chosen_N: Flags | None = None
) -> Stills | None:
    """Return the clips that train as stills beside longer buckets; None if there are none.

    Where all buckets have one frame, stills are what is wanted.

    Args:
        index: plan index of the samples.
        config: buckets, and the sampling of frames.
        assignment: bucket of every sample.
        chosen_N: bool [N], True for the rows that count; None for all.
    """
    frame_counts = sorted(config.frames)
    if frame_counts[0] != 1 or len(frame_counts) == 1:
        return None
    is_still_U = np.array(
        [bucket.frames == 1 for bucket in assignment.buckets] + [False]
    )  # the last one for -1
    rows_X = np.flatnonzero(is_still_U[assignment.bucket_of] & (True if chosen_N is None else chosen_N))
    offered_X = config.sampling.available(index.frames[rows_X], index.fps[rows_X])
    rows_X, offered_X = rows_X[offered_X > 1], offered_X[offered_X > 1]
    if not len(rows_X):
        return None
    return Stills(rows_X, int(offered_X.min()), int(offered_X.max()), frame_counts[1])
