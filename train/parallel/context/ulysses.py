"""Ulysses attention: during attention each rank has all tokens of some heads.

Jacobs et al., "DeepSpeed Ulysses", 2023. An all-to-all each sends queries, keys and values, another returns
outputs; likewise in backward. Tensors apart need no copy into one, and one travels while the next is packed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from reelweave.loader.errors import UsageError
from reelweave.train.models.attention.attend import Attend
from reelweave.train.parallel.context.exchange import Transfer, exchange, exchange_rows
from reelweave.train.parallel.context.partition import Partition


@dataclass(frozen=True, eq=False)
class Ulysses:
    """Self-attention over P ranks.

    Attributes:
        group: the ranks.
        cut: partition of the sequence.
        inner: attention over the whole sequence, for one rank's heads.
        queries: partition of the querying tokens if not all query.
    """

    group: dist.ProcessGroup
    cut: Partition
    inner: Attend
    queries: Partition | None = None

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        """Return the outputs of this rank's queries, [B, H, L/P, D].

        Args:
            q_BHLD: queries of this rank.
            k_BHMD: keys of this rank.
            v_BHMD: values of this rank.

        Raises:
            UsageError: the heads do not divide over the ranks.
        """
        P, (B, H, L, D) = len(self.cut.lengths), q_BHLD.shape
        if H % P:
            degrees = ", ".join(str(degree) for degree in range(1, H + 1) if H % degree == 0)
            raise UsageError(
                f"{H} heads do not divide over {P} ranks of Ulysses; "
                f"take a degree of {degrees}, and a ring for the rest"
            )
        query_lengths = (self.queries or self.cut).lengths
        parts = zip(
            (q_BHLD, k_BHMD, v_BHMD), (query_lengths, self.cut.lengths, self.cut.lengths), strict=True
        )
        heads = exchange([_by_heads(part, lengths) for part, lengths in parts], self.group)
        # Received rows are the tokens of one sequence in memory.
        q_BHLD, k_BHMD, v_BHMD = (x_LBHD.permute(1, 2, 0, 3) for x_LBHD in heads)
        y_BHLD = self.inner.attend(q_BHLD, k_BHMD, v_BHMD)
        rows_LBHD = exchange_rows(y_BHLD.permute(2, 0, 1, 3), query_lengths, [L] * P, self.group)
        # Keep a token's heads adjacent in memory for the output projection.
        y_BLPHD = rows_LBHD.view(P, L, B, H // P, D).permute(2, 1, 0, 3, 4)
        return y_BLPHD.reshape(B, L, H, D).transpose(1, 2)


def _by_heads(x_BHLD: torch.Tensor, lengths: Sequence[int]) -> Transfer:
    """Return the transfer of each rank's heads to it, token by token, [L, B, H/P, D] for each rank.

    Args:
        x_BHLD: tokens of this rank.
        lengths: number of tokens of every rank.
    """
    P, (B, H, L, D) = len(lengths), x_BHLD.shape
    heads_PLBHD = x_BHLD.reshape(B, P, H // P, L, D).permute(1, 3, 0, 2, 4)
    return Transfer(heads_PLBHD.flatten(0, 1), [L] * P, lengths)
