"""Ulysses attention: during attention each rank has all tokens of some heads.

Jacobs et al., "DeepSpeed Ulysses", 2023. One all-to-all sends queries, keys and values, another returns
outputs; likewise in backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from loader.errors import UsageError
from train.models.attention.attend import Attend
from train.parallel.context.exchange import exchange_rows
from train.parallel.context.partition import Partition


@dataclass(frozen=True, eq=False)
class Ulysses:
    """Self-attention over P ranks.

    Attributes:
        group: the ranks.
        cut: partition of the sequence.
        inner: attention over the whole sequence, for one rank's heads.
        queries: partition of the querying tokens if not all query; they use a separate all-to-all.
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
        if self.queries is None:
            whole = self.cut.lengths
            q, k, v = self._scatter((q_BHLD, k_BHMD, v_BHMD), whole)
        else:
            whole = self.queries.lengths
            [q] = self._scatter((q_BHLD,), whole)
            k, v = self._scatter((k_BHMD, v_BHMD), self.cut.lengths)
        y_BHLD = self.inner.attend(q, k, v)
        rows_LBHD = exchange_rows(y_BHLD.permute(2, 0, 1, 3), whole, [L] * P, self.group)
        # Keep a token's heads adjacent in memory for the output projection.
        y_BLPHD = rows_LBHD.view(P, L, B, H // P, D).permute(2, 1, 0, 3, 4)
        return y_BLPHD.reshape(B, L, H, D).transpose(1, 2)

    def _scatter(self, parts: Sequence[torch.Tensor], whole: Sequence[int]) -> list[torch.Tensor]:
        """Return this rank's heads of all tokens, [B, H/P, L, D] each, by one all-to-all."""
        P, (B, H, L, D) = len(whole), parts[0].shape
        # Rows are tokens, so that received rows form one sequence without a copy.
        heads_PLBHD = [x.reshape(B, P, H // P, L, D).permute(1, 3, 0, 2, 4) for x in parts]
        rows_LnBHD = exchange_rows(torch.stack(heads_PLBHD, dim=2).flatten(0, 1), [L] * P, whole, self.group)
        return [x_LBHD.permute(1, 2, 0, 3) for x_LBHD in rows_LnBHD.unbind(dim=1)]
