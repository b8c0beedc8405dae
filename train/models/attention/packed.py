"""Block-diagonal attention: each sample of a packed sequence attends to itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.dense_attention import dense_attention
from reelweave.train.models.attention.segments import Segments

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask  # imports symbolic shapes, for most of a second

PackedBackend = Literal["segments", "flex", "varlen"]
"""segments: one dense attention per sample, on any device and dtype. flex: one kernel with a block mask; CUDA,
elsewhere without gradients. varlen: flash attention; CUDA, bfloat16 and float16."""

BLOCK = 128


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """Pattern in which queries of sample i attend to keys of sample i only, built once for all layers.

    Attributes:
        queries: segments of the packed queries.
        keys: segments of the same sequence, or of another with as many samples (cross-attention).

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
        self,
        q_1HLD: torch.Tensor,
        k_1HMD: torch.Tensor,
        v_1HMD: torch.Tensor,
        backend: PackedBackend | None = None,
    ) -> torch.Tensor:
        """Return scaled dot-product attention, [1, H, L, D].

        Args:
            q_1HLD: queries, L the sum of their lengths.
            k_1HMD: keys, M the sum of theirs.
            v_1HMD: values.
            backend: implementation; None: the fastest for device and dtype.
        """
        if backend is None:
            backend = _fastest(q_1HLD)
        if backend == "segments":
            return self._one_by_one(q_1HLD, k_1HMD, v_1HMD)
        if backend == "flex":
            flex = _flex(compiled=q_1HLD.is_cuda)
            return torch.as_tensor(flex(q_1HLD, k_1HMD, v_1HMD, block_mask=self.block_mask))
        return self._varlen(q_1HLD, k_1HMD, v_1HMD)

    def _one_by_one(self, q_1HLD: torch.Tensor, k_1HMD: torch.Tensor, v_1HMD: torch.Tensor) -> torch.Tensor:
        parts = zip(
            torch.split(q_1HLD, self.queries.lengths, dim=2),
            torch.split(k_1HMD, self.keys.lengths, dim=2),
            torch.split(v_1HMD, self.keys.lengths, dim=2),
            strict=True,
        )
        return torch.cat([dense_attention(*part) for part in parts], dim=2)

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
    def block_mask(self) -> "BlockMask":
        """Mask of `flex_attention`, built from block ends without any of its L x M entries."""
        from torch.nn.attention.flex_attention import BlockMask

        query_L, key_M = self.queries.owner, self.keys.owner
        (first_q, last_q), (first_k, last_k) = _ends(query_L), _ends(key_M)
        seen_QK = (first_q[:, None] <= last_k) & (first_k <= last_q[:, None])
        # A block truncated by the end of the sequence is never full.
        whole_Q = (first_q == last_q) & (_counts(query_L) == BLOCK)
        whole_K = (first_k == last_k) & (_counts(key_M) == BLOCK)
        full_QK = seen_QK & whole_Q[:, None] & whole_K

        def same(_b: torch.Tensor, _h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return query_L[query] == key_M[key]

        return BlockMask.from_kv_blocks(
            *_list_blocks(seen_QK & ~full_QK),
            *_list_blocks(full_QK),
            BLOCK_SIZE=BLOCK,
            mask_mod=same,
            seq_lengths=(len(query_L), len(key_M)),
        )


def _fastest(q: torch.Tensor) -> PackedBackend:
    if not q.is_cuda:
        return "segments"
    return "varlen" if q.dtype in (torch.bfloat16, torch.float16) else "flex"


@cache
def _flex(compiled: bool) -> Callable[..., Any]:
    """Return `flex_attention`; uncompiled, it materializes the whole matrix of scores."""
    from torch.nn.attention.flex_attention import flex_attention

    if compiled:
        return torch.compile(flex_attention)
    return flex_attention


def _ends(owner_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of the first and the last token of each block."""
    first_Q = torch.arange(0, len(owner_L), BLOCK, device=owner_L.device)
    last_Q = (first_Q + BLOCK - 1).clamp(max=len(owner_L) - 1)
    return owner_L[first_Q], owner_L[last_Q]


def _counts(owner_L: torch.Tensor) -> torch.Tensor:
    """Return the number of tokens in each block."""
    first_Q = torch.arange(0, len(owner_L), BLOCK, device=owner_L.device)
    return (len(owner_L) - first_Q).clamp(max=BLOCK)


def _list_blocks(blocks_QK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the count of set blocks per row, int32 [1, 1, Q], and column indices with set ones first, [1, 1, Q, K]."""
    columns_QK = blocks_QK.int().argsort(dim=1, descending=True, stable=True)
    return blocks_QK.sum(dim=1, dtype=torch.int32)[None, None], columns_QK.int()[None, None]
