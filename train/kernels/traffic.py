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


class PairSize(NamedTuple):
    """Queries and keys. Their weights do not count.

    Attributes:
        q_tokens: B L.
        k_tokens: B M.
        q_heads: H.
        k_heads: G.
        head_width: d.
        dtype: of the activations.
        across_heads: the heads of a token share their statistics.
        rotated: positions that have angles of their own, L or B L; 0: no rotation.
    """

    q_tokens: int
    k_tokens: int
    q_heads: int
    k_heads: int
    head_width: int
    dtype: torch.dtype
    across_heads: bool = False
    rotated: int = 0

    @property
    def activation(self) -> int:
        """Bytes of q and k."""
        heads = self.q_tokens * self.q_heads + self.k_tokens * self.k_heads
        return heads * self.head_width * self.dtype.itemsize

    @property
    def statistics(self) -> int:
        """Bytes of what is kept of each norm."""
        heads = (1, 1) if self.across_heads else (self.q_heads, self.k_heads)
        norms = self.q_tokens * heads[0] + self.k_tokens * heads[1]
        return norms * accumulator(self.dtype).itemsize

    @property
    def rotation(self) -> int:
        """Bytes of cosines and sines, float32."""
        return self.rotated * self.head_width * 4
