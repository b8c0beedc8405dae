"""How a sequence is cut over ranks: pure arithmetic, the same on every rank, without communication."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch


@dataclass(frozen=True)
class Cut:
    """Adjacent parts of a sequence, one for each rank of a group.

    What belongs to a token by its place in the whole sequence, such as its rotary angles, is made for the
    whole sequence and indexed by `part`.

    Attributes:
        lengths: tokens of each part, in the order of the ranks; 0 is allowed.
    """

    lengths: tuple[int, ...]

    @classmethod
    def even(cls, tokens: int, ranks: int) -> "Cut":
        """Parts that differ by one token at most, the longer ones first."""
        base, rest = divmod(tokens, ranks)
        return cls(tuple(base + (rank < rest) for rank in range(ranks)))

    @classmethod
    def beside(cls, *streams: "Cut") -> "Cut":
        """The cut of a joint sequence, in which each rank holds its part of every stream, one after the other."""
        return cls(tuple(sum(lengths) for lengths in zip(*(cut.lengths for cut in streams), strict=True)))

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where each part begins in the sequence, and the end."""
        return tuple(accumulate(self.lengths, initial=0))

    @property
    def tokens(self) -> int:
        """Tokens of the whole sequence."""
        return self.ends[-1]

    def part(self, rank: int) -> slice:
        """Where the rank's part lies in the sequence."""
        return slice(self.ends[rank], self.ends[rank + 1])

    def joined(self, ranks: int) -> "Cut":
        """Every so many adjacent parts as one."""
        return Cut(tuple(end - start for start, end in pairwise(self.ends[::ranks])))

    def counts(self, lengths_n: Sequence[int]) -> list[list[int]]:
        """How many tokens of each sample of a packed sequence lie in each part, [parts][n]."""
        samples = list(pairwise(accumulate(lengths_n, initial=0)))
        return [
            [max(0, min(end, high) - max(start, low)) for start, end in samples]
            for low, high in pairwise(self.ends)
        ]


def joint_order(*streams: Cut) -> torch.Tensor:
    """Where each token of a joint sequence (`Cut.beside`) lies in the streams laid end to end, int64 [L].

    For a mask over the joint sequence: ``torch.cat([text_mask_BM, video_mask_BL], dim=1)[:, joint_order(text,
    video)]``.
    """
    starts = list(accumulate((cut.tokens for cut in streams), initial=0))
    spans = [
        torch.arange(start + cut.ends[rank], start + cut.ends[rank + 1])
        for rank in range(len(streams[0].lengths))
        for start, cut in zip(starts, streams, strict=False)
    ]
    return torch.cat(spans)
