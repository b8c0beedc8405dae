"""Bytes that an operator moves and saves, from sizes alone, for the loader's memory budget."""

from typing import NamedTuple

import torch

from reelweave.train.kernels.shared.rows import accumulator


class Size(NamedTuple):
    """Size of an operator's inputs. Weights, biases and ``cu_seqlens`` are negligible kilobytes.

    Attributes:
        tokens: number of tokens in the batch or pack.
        width: width D.
        dtype: dtype of activations.
        rows: number of rows of each modulation: B, B F, or n groups.
        rows_dtype: dtype of the modulations.
        rms: True for a norm without mean.
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
    """Size of queries and keys, without their negligible weights.

    Attributes:
        q_tokens: B L tokens.
        k_tokens: B M tokens.
        q_heads: H heads.
        k_heads: G heads.
        head_width: width d.
        dtype: dtype of activations.
        across_heads: True if the heads of a token share their statistics.
        rotated: number of positions with own angles, L or B L; 0: no rotation.
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
        """Bytes of queries and keys."""
        heads = self.q_tokens * self.q_heads + self.k_tokens * self.k_heads
        return heads * self.head_width * self.dtype.itemsize

    @property
    def statistics(self) -> int:
        """Bytes of the saved statistics of norms."""
        heads = (1, 1) if self.across_heads else (self.q_heads, self.k_heads)
        norms = self.q_tokens * heads[0] + self.k_tokens * heads[1]
        return norms * accumulator(self.dtype).itemsize

    @property
    def rotation(self) -> int:
        """Bytes of cosines and sines, float32."""
        return self.rotated * self.head_width * 4
