"""Bytes that an operator moves and keeps, from sizes alone; a loader's memory budget is their sum."""

from typing import NamedTuple

import torch

from train.kernels.rows import accumulator


class Size(NamedTuple):
    """What an operator works on. Weights, biases and ``cu_seqlens`` do not count: they are kilobytes.

    Attributes:
        tokens: of the batch, or of the pack.
        width: D.
        dtype: of the activations.
        rows: of each modulation: B, B F, or n groups.
        rows_dtype: of the modulations.
        rms: the norm has no mean.
    """

    tokens: int
    width: int
    dtype: torch.dtype
    rows: int
    rows_dtype: torch.dtype
    rms: bool = False

    @property
    def activation(self) -> int:
        """Bytes of one tensor of tokens."""
        return self.tokens * self.width * self.dtype.itemsize

    @property
    def modulation(self) -> int:
        """Bytes of one modulation."""
        return self.rows * self.width * self.rows_dtype.itemsize

    @property
    def statistics(self) -> int:
        """Bytes of the tokens' means and deviations."""
        return self.tokens * accumulator(self.dtype).itemsize * (1 if self.rms else 2)
