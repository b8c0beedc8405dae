"""Attention of all queries of a sample to all of its keys, in the form that is fastest on its device."""

import torch
from torch.nn import functional as F

_BLOCKS = 384  # thread blocks: three for every multiprocessor of a GPU
_BLOCK_KEYS = 128  # keys of a thread block in the backward of fused kernels
_LEAST_QUERIES = 512  # of a part
_PARTS = (8, 4, 2)


def dense_attention(
    q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor, mask_BM: torch.Tensor | None = None
) -> torch.Tensor:
    """Return scaled dot-product attention, [B, H, L, D].

    Args:
        q_BHLD: queries.
        k_BHMD: keys.
        v_BHMD: values.
        mask_BM: True for keys that count, bool, at least one per sample; None: all.
    """
    B, H, L, _ = q_BHLD.shape
    parts = query_parts(B, H, L, k_BHMD.shape[2]) if q_BHLD.is_cuda else 1
    if parts > 1:
        return in_parts(q_BHLD, k_BHMD, v_BHMD, mask_BM, parts)
    return _attend(q_BHLD, k_BHMD, v_BHMD, mask_BM)


def query_parts(samples: int, heads: int, queries: int, keys: int) -> int:
    """Return the number of equal parts of queries that keep a GPU busy in the backward.

    Thread blocks of fused kernels have some keys each in the backward. A text has so few that most of the GPU idles,
    and queries of one sample are treated as those of several.
    """
    blocks = samples * heads * -(-keys // _BLOCK_KEYS)
    for parts in _PARTS:
        if blocks * parts <= _BLOCKS and queries % parts == 0 and queries >= parts * _LEAST_QUERIES:
            return parts
    return 1


def in_parts(
    q_BHLD: torch.Tensor,
    k_BHMD: torch.Tensor,
    v_BHMD: torch.Tensor,
    mask_BM: torch.Tensor | None,
    parts: int,
) -> torch.Tensor:
    """Return attention with equal parts of the queries as samples of their own, [B, H, L, D]."""
    B, H, L, D = q_BHLD.shape
    # Tokens lie before heads in memory, so that parts are views; keys and values, few, are copied.
    part_q = torch.unflatten(q_BHLD.transpose(1, 2), 1, (parts, -1)).flatten(0, 1).transpose(1, 2)
    part_k, part_v = (
        x.transpose(1, 2)[:, None].expand(-1, parts, -1, -1, -1).flatten(0, 1).transpose(1, 2)
        for x in (k_BHMD, v_BHMD)
    )
    mask = None if mask_BM is None else mask_BM.repeat_interleave(parts, dim=0)
    y = _attend(part_q, part_k, part_v, mask)
    return y.transpose(1, 2).reshape(B, L, H, D).transpose(1, 2)


def _attend(
    q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor, mask_BM: torch.Tensor | None
) -> torch.Tensor:
    mask = None if mask_BM is None else mask_BM[:, None, None, :]
    return F.scaled_dot_product_attention(q_BHLD, k_BHMD, v_BHMD, attn_mask=mask)
