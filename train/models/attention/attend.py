"""Who computes attention, and who sees whom: what a model's layers are given where plain attention would not do."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F


class Attend(Protocol):
    """Softmax attention of queries to the keys that they see; made once for all layers of a model."""

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        """Scaled dot-product attention, [B, H, L, D]."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Every query sees every key of its sample that counts.

    Attributes:
        mask: which keys count, bool [B, M], at least one per sample; None: all.
    """

    mask: torch.Tensor | None = None

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        mask = None if self.mask is None else self.mask[:, None, None, :]
        return F.scaled_dot_product_attention(q_BHLD, k_BHMD, v_BHMD, attn_mask=mask)
