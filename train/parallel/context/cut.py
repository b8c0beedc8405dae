"""How a sequence is cut over ranks: pure arithmetic, the same on every rank, without communication."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise


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
