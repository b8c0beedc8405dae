"""What a stream needs of the place its samples come from: one dataset, or a blend of several."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from loader.arrays import Numbers, Places
from loader.dataset.clip import Clip
from loader.dataset.plan_index import PlanIndex


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


class Source(Protocol):
    """Samples to train on: `loader.dataset.Dataset` or `loader.blend.Blend`."""

    @property
    def fingerprint(self) -> str:
        """Fixes the whole content and, with a seed, all draws."""

    @property
    def plan_index(self) -> PlanIndex:
        """What plans and reads need of every sample."""

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """Bytes of a shard, by its place in ``plan_index``; fewer where it ends before.

        Raises:
            FileNotFoundError: there is no such shard.
        """

    def shard_uri(self, shard: int) -> str:
        """Where a shard lies, for messages."""

    def key(self, row_number: int) -> str:
        """Of the sample in a row."""

    def clip(self, row_number: int, region: bytes | memoryview) -> Clip:
        """What is trained on, from all bytes of the sample in a row.

        Raises:
            RunError: they are not those that the index promises, or hold no clip.
        """

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """What an epoch holds; a pure function.

        Args:
            epoch: from 0.
            seed: of the whole run, 0 to 2^64 - 1.
            lengths_N: int64 [rows of the index], tokens of each sample as it is trained on, 0 for one that fits no
                bucket and is not drawn; None draws all.
        """
