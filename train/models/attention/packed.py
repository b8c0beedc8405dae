"""Attention within the samples of packed sequences: what one sample asks, only the same sample answers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from loader.errors import UsageError
from train.models.attention.segments import Segments

Backend = Literal["segments", "flex", "varlen"]
"""segments: one dense attention after the other, on any device and in any type. flex: one kernel with a mask of blocks;
CUDA, elsewhere without gradients. varlen: flash attention; CUDA, bfloat16 and float16."""

BLOCK = 128


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """Who sees whom: queries of sample i see keys of sample i, and no others. Made once for all layers.

    Attributes:
        queries: of a packed sequence.
        keys: of the same sequence, or of another with as many samples (cross-attention).

    Raises:
        UsageError: the numbers of samples differ.
    """

    queries: Segments
    keys: Segments

    def __post_init__(self) -> None:
        if len(self.queries.lengths) != len(self.keys.lengths):
            raise UsageError(
                f"{len(self.queries.lengths)} packed samples cannot attend to {len(self.keys.lengths)}"
            )

    def attend(
        self, q_1HLD: torch.Tensor, k_1HMD: torch.Tensor, v_1HMD: torch.Tensor, backend: Backend | None = None
    ) -> torch.Tensor:
        """Scaled dot-product attention, [1, H, L, D].

        Args:
            q_1HLD: queries, L the sum of their lengths.
            k_1HMD: keys, M the sum of theirs.
            v_1HMD: values.
            backend: None takes the fastest for the device and type.
        """
        if backend is None:
            backend = _fastest(q_1HLD)
        if backend == "segments":
            return self._one_by_one(q_1HLD, k_1HMD, v_1HMD)
        if backend == "flex":
            # Uncompiled, it makes the whole matrix of scores.
            flex: Any = _compiled_flex() if q_1HLD.is_cuda else flex_attention
            return torch.as_tensor(flex(q_1HLD, k_1HMD, v_1HMD, block_mask=self.block_mask))
        return self._varlen(q_1HLD, k_1HMD, v_1HMD)

    def _one_by_one(self, q_1HLD: torch.Tensor, k_1HMD: torch.Tensor, v_1HMD: torch.Tensor) -> torch.Tensor:
        parts = zip(
            torch.split(q_1HLD, self.queries.lengths, dim=2),
            torch.split(k_1HMD, self.keys.lengths, dim=2),
            torch.split(v_1HMD, self.keys.lengths, dim=2),
            strict=True,
        )
        return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], dim=2)

    def _varlen(self, q_1HLD: torch.Tensor, k_1HMD: torch.Tensor, v_1HMD: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        y_LHD = varlen_attn(
            query=q_1HLD[0].transpose(0, 1),
            key=k_1HMD[0].transpose(0, 1),
            value=v_1HMD[0].transpose(0, 1),
            cu_seq_q=self.queries.cu_seqlens,
            cu_seq_k=self.keys.cu_seqlens,
            max_q=max(self.queries.lengths),
            max_k=max(self.keys.lengths),
        )
        return torch.as_tensor(y_LHD).transpose(0, 1)[None]

    @cached_property
    def block_mask(self) -> BlockMask:
        """The mask of `flex_attention`, from the ends of the blocks alone: none of its L x M entries is made."""
        query_L, key_M = self.queries.owner, self.keys.owner
        (first_q, last_q), (first_k, last_k) = _ends(query_L), _ends(key_M)
        seen_QK = (first_q[:, None] <= last_k) & (first_k <= last_q[:, None])
        # A block that the end of the sequence cuts short is never whole.
        whole_Q = (first_q == last_q) & (_counts(query_L) == BLOCK)
        whole_K = (first_k == last_k) & (_counts(key_M) == BLOCK)
        full_QK = seen_QK & whole_Q[:, None] & whole_K

        def same(_b: torch.Tensor, _h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return query_L[query] == key_M[key]

        return BlockMask.from_kv_blocks(
            *_listed(seen_QK & ~full_QK),
            *_listed(full_QK),
            BLOCK_SIZE=BLOCK,
            mask_mod=same,
            seq_lengths=(len(query_L), len(key_M)),
        )


def _fastest(q: torch.Tensor) -> Backend:
    if not q.is_cuda:
        return "segments"
    return "varlen" if q.dtype in (torch.bfloat16, torch.float16) else "flex"


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def _ends(owner_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of the first and the last token of each block."""
    first_Q = torch.arange(0, len(owner_L), BLOCK, device=owner_L.device)
    last_Q = (first_Q + BLOCK - 1).clamp(max=len(owner_L) - 1)
    return owner_L[first_Q], owner_L[last_Q]


def _counts(owner_L: torch.Tensor) -> torch.Tensor:
    """The tokens of each block."""
    first_Q = torch.arange(0, len(owner_L), BLOCK, device=owner_L.device)
    return (len(owner_L) - first_Q).clamp(max=BLOCK)


def _listed(blocks_QK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of blocks how many are set, int32 [1, 1, Q], and their columns before the others', [1, 1, Q, K]."""
    columns_QK = blocks_QK.int().argsort(dim=1, descending=True, stable=True)
    return blocks_QK.sum(dim=1, dtype=torch.int32)[None, None], columns_QK.int()[None, None]
