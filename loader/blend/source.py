"""What a stream needs of the place its samples come from: one dataset, or a blend of several."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loader.dataset.clip import TrainingSample
from loader.dataset.draws import Draws
from loader.dataset.latents import Latents
from loader.dataset.plan_index import PlanIndex


class SampleSource(Protocol):
    """Samples to train on: `loader.dataset.Dataset` or `loader.blend.Blend`."""

    @property
    def fingerprint(self) -> str:
        """Fixes the whole content and, with a seed, all draws."""

    @property
    def latents(self) -> Latents | None:
        """What is said of the latents that stand for clips; None where none do."""

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

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
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
