"""Attention patterns that replace plain attention in a model's layers."""

from dataclasses import dataclass
from typing import Protocol

import torch

from reelweave.train.kernels.dense_attention import dense_attention


class Attend(Protocol):
    """Attention pattern, built once for all layers of a model."""

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        """Return scaled dot-product attention, [B, H, L, D]."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Attention of every query to every valid key of its sample.

    Attributes:
        mask: True for valid keys, bool [B, M], at least one per sample; None: all.
    """

    mask: torch.Tensor | None = None

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        return dense_attention(q_BHLD, k_BHMD, v_BHMD, self.mask)
