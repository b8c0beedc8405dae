"""Draws of an epoch, before the shuffle."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from reelweave.loader.base.arrays import IndexArray, IntegerArray


@dataclass(frozen=True, eq=False)
class Draws:
    """Samples of an epoch in a fixed order before the shuffle; a sample may be drawn more than once.

    Attributes:
        rows: uint32 or int64 [D], index rows.
        passes: int64 [D], number of earlier draws of the row's sample, in all epochs. Row and pass identify the draw
            and seed its random choices (noise, frames of a clip).
        leaf: int64 [D], number of the blend's leaf that drew the sample; 0 without a blend.
    """

    rows: IntegerArray
    passes: IndexArray
    leaf: IndexArray

    @classmethod
    def once(cls, rows_D: IntegerArray, epoch: int) -> Self:
        """Return draws of each row once, as in every epoch before; the other columns share one value in memory."""
        return cls(rows_D, *(np.broadcast_to(np.int64(value), rows_D.shape) for value in (epoch, 0)))
