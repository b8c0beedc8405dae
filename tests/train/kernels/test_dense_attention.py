"""Attention with parts of the queries as samples of their own, as a GPU computes that to a text."""

import pytest
import torch
from torch.nn import functional as F

from reelweave.train.kernels.dense_attention import in_parts, query_parts


@pytest.mark.parametrize(("samples", "parts", "masked"), [(1, 4, False), (2, 2, False), (2, 4, True)])
def test_parts_of_the_queries_attend_as_all_of_them(samples, parts, masked):
    torch.manual_seed(0)
    shapes = [(samples, tokens, 3, 8) for tokens in (24, 5, 5)]
    x = [torch.randn(shape, dtype=torch.float64).transpose(1, 2).requires_grad_() for shape in shapes]
    mask_BM = torch.arange(5) < torch.tensor([[3], [5]]) if masked else None
    mask = None if mask_BM is None else mask_BM[:, None, None]
    expected, found = F.scaled_dot_product_attention(*x, attn_mask=mask), in_parts(*x, mask_BM, parts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # Tokens before heads, as the output projection takes them without a copy.
    assert found.transpose(1, 2).is_contiguous()
    gradient = torch.randn(samples, 24, 3, 8, dtype=torch.float64).transpose(1, 2)
    wanted, gradients = (torch.autograd.grad(y, x, gradient) for y in (expected, found))
    torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("samples", "heads", "queries", "keys", "parts"),
    [
        (1, 12, 32_760, 512, 8),  # Wan-1.3B and its text
        (1, 12, 32_760, 77, 8),
        (8, 12, 8_190, 512, 1),  # samples enough
        (1, 64, 75_600, 512, 1),  # heads enough
        (1, 12, 32_760, 32_760, 1),  # keys enough
        (1, 12, 32_766, 77, 2),  # what divides the queries
        (1, 12, 1_560, 77, 2),  # an image
    ],
)
def test_there_are_as_many_parts_as_keep_a_gpu_busy(samples, heads, queries, keys, parts):
    assert query_parts(samples, heads, queries, keys) == parts
