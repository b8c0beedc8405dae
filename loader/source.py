"""What a stream needs of the place its samples come from: one dataset, or a blend of several."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Draws:
    """The samples of an epoch, in a fixed order that is no shuffle; a sample may be drawn more than once.

    Attributes:
        rows: int64 [D], index rows.
        passes: int64 [D], how often the sample of the row was drawn before, in this epoch or an earlier one: with the
            row it names the draw, and seeds what shall differ from draw to draw (noise, the frames of a clip).
        leaf: int64 [D], which of the blended datasets drew it; 0 where nothing is blended.
    """

    rows: NDArray[np.int64]
    passes: NDArray[np.int64]
    leaf: NDArray[np.int64]


class Source(Protocol):
    """Samples to train on: `loader.dataset.Dataset` or `loader.blend.Blend`."""

    @property
    def fingerprint(self) -> str:
        """Fixes the whole content and, with a seed, all draws."""

    @property
    def index(self) -> pa.Table:
        """One row per sample (columns: ``loader.dataset.schema.INDEX``)."""

    def read_member(self, row_number: int, suffix: str) -> bytes:
        """The content of one member of the sample in a row of the index."""

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """What an epoch holds; a pure function.

        Args:
            epoch: from 0.
            seed: of the whole run, 0 to 2^64 - 1.
            lengths_N: int64 [rows of the index], tokens of each sample as it is trained on, 0 for one that fits no
                bucket and is not drawn; None draws all.
        """
