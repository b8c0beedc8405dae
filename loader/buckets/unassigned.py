"""Samples without a bucket, each with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.columns import distinct

_SIZE = 1 << 62


@dataclass(frozen=True, eq=False)
class Unassigned:
    """Rows of an index without a bucket, in columns instead of one string per row.

    Attributes:
        rows: int64 [X], rising.
        reason_of: int32 [X], place of each row's reason in ``reasons``.
        reasons: distinct reasons in words.
    """

    rows: NDArray[np.int64]
    reason_of: NDArray[np.int32]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def iterate_reasons(self, keys: pa.ChunkedArray) -> Iterator[tuple[str, str]]:
        """Yield (key, reason) of each row.

        Args:
            keys: keys of the whole index.
        """
        for row, reason in zip(self.rows, self.reason_of, strict=True):
            yield keys[int(row)].as_py(), self.reasons[reason]

    def among(self, chosen_N: NDArray[np.bool_]) -> "Unassigned":
        """Return those of some rows.

        Args:
            chosen_N: bool [N], True for the rows of the index that count.
        """
        own_X = chosen_N[self.rows]
        return replace(self, rows=self.rows[own_X], reason_of=self.reason_of[own_X])

    def counts(self) -> dict[str, int]:
        """Return the number of rows by reason, most frequent first."""
        count_U = np.bincount(self.reason_of, minlength=len(self.reasons))
        order = np.argsort(-count_U, kind="stable")
        return {self.reasons[index]: int(count_U[index]) for index in order if count_U[index]}


def find_unassigned(
    rows_X: NDArray[np.int64],
    frames_X: NDArray[np.integer[Any]],
    height_X: NDArray[np.integer[Any]],
    width_X: NDArray[np.integer[Any]],
    fewest_frames: int,
    limits: str,
) -> Unassigned:
    """Find the reason of each sample without a bucket: too few frames, or else no size within the limits.

    Args:
        rows_X: index rows, rising.
        frames_X: number of frames of each sample.
        height_X: height of each sample in pixels.
        width_X: width of each sample in pixels.
        fewest_frames: smallest number of frames of any bucket.
        limits: limits on enlarging and cropping, in words.
    """
    # One number encodes the reason: the frame count, or above all frame counts the size.
    size_X = height_X.astype(np.int64) << 31 | width_X
    why_U, reason_X = distinct(np.where(frames_X < fewest_frames, frames_X, _SIZE + size_X))
    reasons = [
        f"{why} frames, the smallest bucket has {fewest_frames}"
        if why < _SIZE
        else f"{why - _SIZE >> 31}x{why & 0x7FFFFFFF} pixels fill no size without {limits}"
        for why in why_U.tolist()
    ]
    return Unassigned(rows_X, reason_X, tuple(reasons))
