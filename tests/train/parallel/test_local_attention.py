"""Attention over blocks of keys: log-sum-exp, merging and gradients against plain attention over all keys."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from reelweave.train.parallel.context import local_attention
from reelweave.train.parallel.context.local_attention import CPU, FLASH, PLAIN
from reelweave.train.parallel.context.lse import merge_
from tests.train.comparison import relative

WAYS = {"cpu": CPU, "plain": PLAIN}
TOLERANCES = {torch.float64: 1e-13, torch.float32: 5e-6, torch.bfloat16: 1e-2}
# Queries, and keys of each block; one query and one key are odd ends of blocked kernels.
SIZES = [(50, [5, 1, 70]), (1, [3]), (130, [1, 64])]


def inputs(L: int, M: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values and the gradient of the output, seen through strides as the model makes them."""
    torch.manual_seed(0)
    return [torch.randn(2, n, 3, 10, dtype=dtype).transpose(1, 2) * 3 for n in (L, M, M, L)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("L", "blocks"), SIZES)
def test_blocks_merge_to_attention_over_all_keys(L, blocks, way, dtype, monkeypatch):
    # Few enough scores at once that `plain` takes the queries in several parts.
    monkeypatch.setattr(local_attention, "SCORES", 2 * 3 * 70 * 40)
    q, k, v, dout = inputs(L, sum(blocks), dtype)
    wide = [x.double().clone().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide)
    expected.backward(dout.double())
    out = torch.zeros(q.shape, dtype=torch.promote_types(dtype, torch.float32))
    lse = out.new_full(q.shape[:-1], -torch.inf)
    parts = list(zip(k.split(blocks, dim=2), v.split(blocks, dim=2), strict=True))
    for part in parts:
        more, more_lse = WAYS[way].forward(q, *part)
        assert (more.dtype, more_lse.dtype) == (dtype, out.dtype)
        merge_(out, lse, more, more_lse)
    scores = wide[0] @ wide[1].mT / 10**0.5
    assert relative(lse, scores.logsumexp(dim=-1)) <= TOLERANCES[dtype]
    assert relative(out, expected) <= TOLERANCES[dtype]
    gradients = [WAYS[way].backward(dout, q, *part, out.to(dtype), lse) for part in parts]
    dq, dk, dv = zip(*gradients, strict=True)
    found = (sum(part.double() for part in dq), torch.cat(dk, dim=2), torch.cat(dv, dim=2))
    for gradient, whole in zip(found, wide, strict=True):
        assert relative(gradient, whole.grad) <= 2 * TOLERANCES[dtype]


def test_scores_far_apart_do_not_overflow():
    out, lse = torch.ones(1, 1, 2, 1), torch.tensor([[[900.0, -900.0]]])
    merge_(out, lse, torch.full((1, 1, 2, 1), 5.0), torch.tensor([[[-900.0, 900.0]]]))
    assert out.flatten().tolist() == [1.0, 5.0]
    assert lse.flatten().tolist() == [900.0, 900.0]


def test_plain_attention_keeps_its_precision_under_autocast():
    q, k, v, _ = inputs(13, 20, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = PLAIN.forward(q, k, v)
    assert relative(out, F.scaled_dot_product_attention(q, k, v)) <= 1e-6
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_half_precision_goes_to_flash_attention(dtype):
    """Shapes and arguments alone: no GPU is needed for them."""
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, n, 64, dtype=dtype, device="cuda") for n in (7, 9, 9))
        assert local_attention.local_attention(q) is FLASH
        out, lse = FLASH.forward(q, k, v)
        gradients = FLASH.backward(torch.empty_like(q), q, k, v, out, lse)
        assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
        assert (lse.shape, lse.dtype) == (q.shape[:-1], torch.float32)
        assert local_attention.local_attention(q.float()) is PLAIN
        assert local_attention.local_attention(q[..., :12]) is PLAIN
