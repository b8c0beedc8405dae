"""Protocol of sample sources: one dataset, or a blend of several."""

from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.dataset.samples.clip import TrainingSample


class SampleSource(Protocol):
    """Samples to train on: `reelweave.loader.dataset.Dataset` or `reelweave.loader.blend.Blend`."""

    @property
    def fingerprint(self) -> str:
        """Hash of the whole content, which together with a seed determines all draws."""

    @property
    def latents(self) -> Latents | None:
        """Description of stored latents; None if there are none."""

    @property
    def plan_index(self) -> PlanIndex:
        """Columns of every sample that plans and reads need."""

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard, by its number in ``plan_index``; fewer if the shard ends before.

        Raises:
            FileNotFoundError: the shard does not exist.
        """

    def shard_uri(self, shard: int) -> str:
        """Return the URI of a shard, for messages."""

    def key(self, row_number: int) -> str:
        """Return the key of the sample in a row."""

    def dataset_of(self, row_number: int) -> int:
        """Return the number of a row's dataset in a blend; 0 without a blend."""

    def describe(self, row_numbers: IndexArray) -> pa.Table:
        """Return the columns `reelweave.loader.dataset.tables.row_columns.ROW_COLUMNS` of some rows, in their order."""

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
        """Parse all bytes of the sample in a row.

        Raises:
            RunError: the bytes contradict the index, or contain no clip.
        """

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """Return the draws of an epoch; a pure function.

        Args:
            epoch: number of the epoch, from 0.
            seed: seed of the run, 0 to 2^64 - 1.
            lengths_N: int64 [rows of the index], S of each sample, 0 for samples without a bucket, which are not drawn;
                None draws all.
        """
