"""Exact merge of softmax attention over disjoint sets of keys."""

import torch


def merge_(
    out_BHLD: torch.Tensor, lse_BHL: torch.Tensor, more_BHLD: torch.Tensor, more_lse_BHL: torch.Tensor
) -> None:
    """Merge attention over further keys into that over the keys so far, in place.

    With scores s let lse = log(sum(exp(s))) over a set of keys. Attention over the union of two disjoint sets
    is then the mean of both, weighted by exp(lse). Sources: Milakov and Gimelshein, "Online normalizer
    calculation for softmax", 2018, section 3.1; for blocks on a ring Liu et al., "Ring Attention", 2023.

    Args:
        out_BHLD: attention so far, at least float32; 0 without keys.
        lse_BHL: log-sum-exp so far; -inf without keys.
        more_BHLD: attention over the further keys, at least one, in any dtype.
        more_lse_BHL: log-sum-exp over the further keys.
    """
    weight_BHL = torch.sigmoid(more_lse_BHL - lse_BHL)
    out_BHLD.lerp_(more_BHLD.to(out_BHLD.dtype), weight_BHL[..., None])
    torch.logaddexp(lse_BHL, more_lse_BHL, out=lse_BHL)
