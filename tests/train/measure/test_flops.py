"""Operations from shapes, against PyTorch's own count of what runs."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reelweave.train.config.model import PRESETS, DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.measure.flops import utilisation
from reelweave.train.models.build import build_denoiser
from tests.thorough import but

WIDTH = {"hidden": 256, "heads": 4, "layers": 2}
KINDS = {
    "dit": DiTConfig(**WIDTH),
    "dit, low rank": DiTConfig(**WIDTH, adaln_rank=16, mlp_ratio=35 / 6),
    "st_dit": STDiTConfig(**WIDTH),
    "st_dit, full": STDiTConfig(**WIDTH, full_attention=True, adaln_rank=16),
    "mmdit": MMDiTConfig(**WIDTH),
    "mmdit, patches of two frames": MMDiTConfig(**WIDTH, patch=(2, 2, 2), adaln_rank=16),
}
SHAPES = {"image": (2, 16, 24), "video": (12, 20, 12), "long": (40, 8, 8)}


def count(run, *inputs):
    """Operations of forward and backward."""
    with FlopCounterMode(display=False) as counter:
        outputs = run(*inputs)
        forward = counter.get_total_flops()
        sum(out.sum() for out in outputs).backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("shape", but(("video",), SHAPES))
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_operations_are_those_that_run(config, shape):
    size = SHAPES[shape]
    with torch.device("meta"):  # where attention is counted as the products it is made of
        model = build_denoiser(config, channels=16, text_width=64)
        latents = torch.randn(1, 16, *size)
        counted = count(
            model, latents, torch.rand(1), torch.randn(1, 77, 64), torch.ones(1, 77, dtype=torch.bool)
        )
    found = model.flops(size, 77)
    assert (found.forward, found.backward) == counted


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_pack_costs_what_its_samples_cost(config):
    model = build_denoiser(config, channels=4, text_width=8)
    sizes, captions = [(2, 4, 6), (4, 2, 4), (2, 8, 2)], [3, 1, 5]
    mask_BM = torch.arange(5) < torch.tensor(captions)[:, None]
    forward, backward = count(
        model.forward_packed,
        [torch.randn(4, *size) for size in sizes],
        torch.rand(3),
        torch.randn(3, 5, 8),
        mask_BM,
    )
    found = [model.flops(size, text) for size, text in zip(sizes, captions, strict=True)]
    assert forward == sum(one.forward for one in found)
    # The fused kernel that runs here makes the scores again in its backward.
    assert backward == sum(one.backward + one.attention // 2 for one in found)


def test_utilisation_is_a_share_of_the_peak():
    assert utilisation(flops=300e12, seconds=2.0, peak_flops_per_s=600e12) == 0.25


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_of_presets_tells_their_parameters(name):
    page = (Path(__file__).parents[3] / "docs/models.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    parameters, published, difference = (cell.strip() for cell in row.split("|")[3:6])
    with torch.device("meta"):
        model = build_denoiser(PRESETS[name], channels=16, text_width=4096)
    counted = sum(weight.numel() for weight in model.parameters())
    assert parameters == f"{counted:,}"
    if published:
        size = float(published.removesuffix(" B")) * 1e9
        assert difference == f"{100 * (counted / size - 1):+.1f} %"
