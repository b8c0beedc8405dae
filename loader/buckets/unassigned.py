"""Samples that fit no bucket, each with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.base.columns import distinct

_SIZE = 1 << 62


@dataclass(frozen=True, eq=False)
class Unassigned:
    """Rows of an index without a bucket; a hundred million of them are no hundred million strings.

    Attributes:
        rows: int64 [X], rising.
        reason_of: int32 [X], place in ``reasons``.
        reasons: different ones, in words.
    """

    rows: NDArray[np.int64]
    reason_of: NDArray[np.int32]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def named(self, keys: pa.ChunkedArray) -> Iterator[tuple[str, str]]:
        """(key, reason) of each row, made as they are asked for.

        Args:
            keys: of the whole index.
        """
        for row, reason in zip(self.rows, self.reason_of, strict=True):
            yield keys[int(row)].as_py(), self.reasons[reason]

    def counts(self) -> dict[str, int]:
        """Rows of each reason, most first."""
        count_U = np.bincount(self.reason_of, minlength=len(self.reasons))
        return {self.reasons[place]: int(count_U[place]) for place in np.argsort(-count_U, kind="stable")}


def unassigned(
    rows_X: NDArray[np.int64],
    frames_X: NDArray[np.integer[Any]],
    height_X: NDArray[np.integer[Any]],
    width_X: NDArray[np.integer[Any]],
    fewest_frames: int,
    limits: str,
) -> Unassigned:
    """Reasons for samples known to fit no bucket: too few frames, or else no size within the limits.

    Args:
        rows_X: of the index, rising.
        frames_X: of the samples.
        height_X: of the samples, pixels.
        width_X: of the samples, pixels.
        fewest_frames: of any bucket.
        limits: of the sizes a sample may fill, in words.
    """
    # One number says why: the frame count, or above all of these the size.
    size_X = height_X.astype(np.int64) << 31 | width_X
    why_U, reason_X = distinct(np.where(frames_X < fewest_frames, frames_X, _SIZE + size_X))
    reasons = [
        f"{why} frames, the smallest bucket has {fewest_frames}"
        if why < _SIZE
        else f"{why - _SIZE >> 31}x{why & 0x7FFFFFFF} pixels fill no size without {limits}"
        for why in why_U.tolist()
    ]
    return Unassigned(rows_X, reason_X, tuple(reasons))
