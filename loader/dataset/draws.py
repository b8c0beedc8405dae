"""Which samples an epoch has, before they are shuffled."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from loader.base.arrays import Numbers, Places


@dataclass(frozen=True, eq=False)
class Draws:
    """The samples of an epoch, in a fixed order that is no shuffle; a sample may be drawn more than once.

    Attributes:
        rows: uint32 or int64 [D], index rows.
        passes: int64 [D], how often the sample of the row was drawn before, in this epoch or an earlier one: with the
            row it names the draw, and seeds what shall differ from draw to draw (noise, the frames of a clip).
        leaf: int64 [D], which of the blended datasets drew it; 0 where nothing is blended.
    """

    rows: Numbers
    passes: Places
    leaf: Places

    @classmethod
    def once(cls, rows_D: Numbers, epoch: int) -> Self:
        """Each of the rows once, as in every epoch before. Of the other columns only one value is in memory."""
        return cls(rows_D, *(np.broadcast_to(np.int64(value), rows_D.shape) for value in (epoch, 0)))
