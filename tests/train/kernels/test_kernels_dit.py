"""The DiT with fused operators is, bit for bit, the DiT of before them."""

import pytest
import torch

from reelweave.train.config.model import DiTConfig
from reelweave.train.models import dit as dit_module
from reelweave.train.models.dit import DiT
from tests.train.kernels.kernel_cases import gate_residual_before, modulate_before, qk_norm_before


def gate_residual_modulate_before(x_BLD, branch_BLD, gate_BD, shift_BD, scale_BD, segments=None):
    x_BLD = gate_residual_before(x_BLD, branch_BLD, gate_BD, segments)
    return x_BLD, modulate_before(x_BLD, shift_BD, scale_BD, segments)


def outcome(packed, dtype, autocast):
    torch.manual_seed(0)
    dit = DiT(DiTConfig(hidden=48, heads=2, layers=2), channels=6, text_width=5)
    for parameter in dit.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    dit = dit.to(dtype)
    text = torch.randn(3, 4, 5, dtype=dtype), torch.ones(3, 4, dtype=torch.bool)
    times = torch.rand(3, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if packed:
            latents = [torch.randn(6, *size, dtype=dtype) for size in [(3, 4, 6), (1, 4, 4), (5, 8, 2)]]
            outs = dit.forward_packed(latents, times, *text)
        else:
            outs = [dit(torch.randn(3, 6, 3, 8, 6, dtype=dtype), times, *text)]
    sum(out.float().square().mean() for out in outs).backward()
    return [*outs, *(parameter.grad for parameter in dit.parameters())]


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float64, False), (torch.float32, True)],
    ids=["float32", "float64", "autocast"],
)
def test_outputs_and_gradients_keep_their_bits(packed, dtype, autocast, monkeypatch):
    found = outcome(packed, dtype, autocast)
    monkeypatch.setattr(dit_module, "modulate", modulate_before)
    monkeypatch.setattr(dit_module, "gate_residual", gate_residual_before)
    monkeypatch.setattr(dit_module, "gate_residual_modulate", gate_residual_modulate_before)
    monkeypatch.setattr(dit_module, "qk_norm", qk_norm_before)
    expected = outcome(packed, dtype, autocast)
    assert all(x.any() for x in expected)
    assert [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)] == []
