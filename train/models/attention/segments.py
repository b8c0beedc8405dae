"""Segments: concatenated samples of a packed sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from reelweave.loader.plan.packing import cu_seqlens
from reelweave.train.models.transfer import send_one


@dataclass(frozen=True, eq=False)
class Segments:
    """Lengths and offsets of the samples of a packed sequence.

    Attributes:
        lengths: number of tokens of each of the n samples.
        cu_seqlens: start of each sample, and the end; int32 [n + 1] on the device of the sequence.
    """

    lengths: list[int]
    cu_seqlens: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Segments":
        """Build segments of these lengths, at least 1 each."""
        return cls(list(lengths), send_one(torch.from_numpy(cu_seqlens(lengths)), device))

    @cached_property
    def owner(self) -> torch.Tensor:
        """Sample index of each token, int64 [L]."""
        counts_n = self.cu_seqlens.diff().long()
        numbers_n = torch.arange(len(self.lengths), device=counts_n.device)
        return numbers_n.repeat_interleave(counts_n, output_size=sum(self.lengths))

    def spread(self, rows_nD: torch.Tensor) -> torch.Tensor:
        """Repeat each sample's row for each of its tokens, [L, D]."""
        return rows_nD.index_select(0, self.owner)


def valid_rows(rows_BMD: torch.Tensor, mask_BM: torch.Tensor) -> torch.Tensor:
    """Return the rows where a mask is true, one sample after the other, [1, L, D].

    Args:
        rows_BMD: padded rows.
        mask_BM: True for valid rows; on the CPU, or on the device of the rows, which the host then waits for.
    """
    places_L = send_one(mask_BM.flatten().nonzero()[:, 0], rows_BMD.device)
    return rows_BMD.flatten(0, 1).index_select(0, places_L)[None]
