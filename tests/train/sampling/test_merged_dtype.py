"""Merged adapters on frozen weights in bfloat16: every dtype holds the sum, rounded once."""

import pytest
import torch
from safetensors.torch import load_file

from reelweave.pipelines.cli import main
from reelweave.train.loop.trainer import Trainer
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_trained
from tests.train.clips import ClipStream
from tests.train.published import run_config
from tests.train.saved import tensors

CPU = torch.device("cpu")
RANK, ALPHA = 4, 8.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of adapters, and the frozen weights under them in bfloat16, by name."""
    folder = tmp_path_factory.mktemp("wan")
    config = run_config(folder, "wan", 4, lr=1e-2, dtype="bfloat16", lora={"rank": RANK, "alpha": ALPHA})
    narrow = config.model.model_copy(update={"dtype": "bfloat16"})
    Trainer(config.model_copy(update={"model": narrow}), ClipStream(), folder / "run").run()
    frozen = load_trained(str(folder / "run"), CPU).bundle.dit.model.state_dict()
    base = {
        name.replace(".base_layer", ""): weight for name, weight in frozen.items() if ".lora_" not in name
    }
    return folder / "run", base


def sums(run, base):
    """The merged matrices in float64."""
    saved = {name.removeprefix("dit.model."): weight for name, weight in tensors(run, "model").items()}
    layers = [name.split(".lora_A.")[0] for name in saved if ".lora_A." in name]
    assert len(layers) == 16
    return {
        f"{layer}.weight": base[f"{layer}.weight"].double()
        + ALPHA
        / RANK
        * (
            saved[f"{layer}.lora_B.default.weight"].double()
            @ saved[f"{layer}.lora_A.default.weight"].double()
        )
        for layer in layers
    }


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
def test_a_merged_matrix_is_rounded_once(run, tmp_path, dtype):
    """In float32 and float16 it was rounded to bfloat16 first, without a word."""
    folder, base = run
    export(load_trained(str(folder), CPU), tmp_path / "out", merged=True, dtype=dtype)
    [file] = (tmp_path / "out").glob("*.safetensors")
    merged = load_file(file)
    expected = sums(folder, base)
    rounded = getattr(torch, dtype or "bfloat16")
    for name, exact in expected.items():
        assert merged[name].dtype == rounded, name
        # The product is summed in float32, which leaves a unit of its last place.
        slack = torch.finfo(torch.float32).eps * 4
        half_unit = torch.finfo(rounded).eps / 2 * exact.abs()
        assert ((merged[name].double() - exact).abs() <= half_unit + slack).all(), name
    assert {merged[name].dtype for name in base if name not in expected} <= {torch.float32, rounded}
    untouched = [name for name in base if name not in expected and rounded != torch.float16]
    assert all(torch.equal(merged[name].double(), base[name].double()) for name in untouched)


def test_a_dtype_that_nobody_asked_for_is_said(run, tmp_path, capsys):
    folder, _ = run
    for dtype in ((), ("--dtype", "float32")):
        out = tmp_path / f"out{len(dtype)}"
        assert main(["export", str(folder), "--out", str(out), "--merge", *dtype]) == 0
        mentioned = "the merged weights are rounded to bfloat16" in capsys.readouterr().err
        assert mentioned == (not dtype)
