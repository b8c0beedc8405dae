"""Linear layers with weights in 8 and 4 bits: what they are rounded to, and that nothing else changes."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.precision.narrow import held_bytes, narrow_, narrow_layers
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import beyond
from tests.train.clips import ClipStream
from tests.train.published import drawn, run_config
from tests.train.saved import losses, tensors

ERRORS = {"float8": 0.03, "nf4": 0.1}


def layer(inner: int = 96, out: int = 40, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    drawn = nn.Linear(inner, out, dtype=dtype)
    drawn.weight.data *= torch.logspace(-3, 1, out)[:, None].to(dtype)  # rows of other sizes
    return drawn.requires_grad_(False)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("inner", [96, 33])
def test_weights_are_near_and_take_the_bytes_that_are_counted(kind, inner):
    plain = layer(inner)
    before = plain.weight.clone()
    [narrow] = narrow_([plain], kind)
    assert (narrow is plain, isinstance(narrow, nn.Linear)) == (True, True)
    assert ((narrow.weight - before).norm() / before.norm()).item() < ERRORS[kind]
    assert narrow.codes.nbytes + narrow.scales.nbytes == held_bytes([(40, inner)], kind)
    # Rounding what is rounded changes nothing, so a second run holds the same.
    again = narrow.weight.clone()
    narrow.hold_(again)
    assert torch.equal(narrow.weight, again)


@pytest.mark.parametrize("kind", ERRORS)
def test_rows_of_zeros_stay_zeros(kind):
    plain = layer()
    plain.weight.data[:8] = 0
    [narrow] = narrow_([plain], kind)
    assert narrow.weight[:7].abs().max() == 0
    assert narrow.weight.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ERRORS)
def test_products_and_gradients_are_those_of_the_rounded_weight(kind, dtype):
    narrow, plain = layer(), layer()
    narrow_([narrow], kind)
    plain.weight.data = narrow.weight
    x = torch.randn(2, 5, 96)
    results = []
    for one in (narrow, plain):
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = one(inputs)
        y.square().sum().backward()
        assert y.dtype == dtype
        results.append((y, inputs.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_values_come_later_to_layers_on_the_meta_device():
    expected, later = layer(), layer()
    weight = later.weight.detach().clone()
    narrow_([expected], "nf4")
    later.to("meta")
    [narrow] = narrow_([later], "nf4")
    narrow.to_empty(device="cpu")
    narrow.hold_(weight)
    assert torch.equal(narrow.weight, expected.weight)


@pytest.mark.parametrize("kind", beyond(1, ["nf4", "float8"]))
def test_a_run_is_that_of_the_rounded_model(kind, tmp_path):
    narrow = run_config(tmp_path / "own", "wan", 3, lora={"rank": 4, "base_dtype": kind})
    plain = run_config(tmp_path / "rounded", "wan", 3, lora={"rank": 4})
    rounded = drawn("wan", channels=24)
    for block in rounded.blocks:
        for linear in (module for module in block.modules() if isinstance(module, nn.Linear)):
            [copied] = narrow_([deepcopy(linear)], kind)
            linear.weight.data = copied.weight
    rounded.save_pretrained(tmp_path / "rounded" / "transformer")
    runs = [tmp_path / name / "run" for name in ("own", "rounded")]
    for config, run in zip((narrow, plain), runs, strict=True):
        Trainer(config, ClipStream(), run).run()
    assert losses(runs[0]) == losses(runs[1])
    first, second = (tensors(run, "model") for run in runs)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    # Sampled are the rounded weights, too; merged are those that were published.
    asked = (
        torch.randn(1, 24, 2, 4, 4),
        torch.rand(1),
        torch.randn(1, 5, 8),
        torch.ones(1, 5, dtype=torch.bool),
    )
    models = [load_trained(str(run), torch.device("cpu"), "model").bundle.dit for run in runs]
    with torch.no_grad():
        assert torch.equal(*(model(*asked) for model in models))
    published = load_trained(str(runs[0]), torch.device("cpu"), "model", as_published=True).bundle.dit
    assert narrow_layers(models[0])
    assert not narrow_layers(published)
