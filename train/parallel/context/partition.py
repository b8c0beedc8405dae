"""Partition of a sequence over ranks: pure arithmetic, identical on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Partition:
    """Adjacent parts of a sequence, one per rank of a group.

    Position-dependent values of tokens, such as rotary angles, are computed for the whole sequence and indexed
    by `part`.

    Attributes:
        lengths: number of tokens in each part, by rank; 0 is allowed.
    """

    lengths: tuple[int, ...]

    @classmethod
    def even(cls, tokens: int, ranks: int) -> "Partition":
        """Partition into parts that differ by at most one token, the longer ones first."""
        base, rest = divmod(tokens, ranks)
        return cls(tuple(base + (rank < rest) for rank in range(ranks)))

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Start of each part in the sequence, and the end."""
        return tuple(accumulate(self.lengths, initial=0))

    @property
    def tokens(self) -> int:
        """Number of tokens in the whole sequence."""
        return self.ends[-1]

    def part(self, rank: int) -> slice:
        """Return a rank's slice of the sequence."""
        return slice(self.ends[rank], self.ends[rank + 1])

    def join(self, ranks: int) -> "Partition":
        """Merge every ``ranks`` adjacent parts."""
        return Partition(tuple(end - start for start, end in pairwise(self.ends[::ranks])))

    def counts(self, lengths_n: Sequence[int]) -> list[list[int]]:
        """Count each packed sample's tokens in each part, [parts][n]."""
        samples = list(pairwise(accumulate(lengths_n, initial=0)))
        return [
            [max(0, min(end, high) - max(start, low)) for start, end in samples]
            for low, high in pairwise(self.ends)
        ]
