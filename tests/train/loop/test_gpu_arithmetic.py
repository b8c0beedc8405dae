"""Training and sampling in the arithmetic that fused operators have on a GPU, run on the processor."""

import pytest
import torch

from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models import adaln, dit
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.activations import compile_block
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.generate import generate
from tests.thorough import beyond, but
from tests.train.clips import BUCKETS, ClipStream, tiny_config
from tests.train.comparison import gradients, relative_errors
from tests.train.saved import losses

MODEL = {"hidden": 48, "heads": 2, "layers": 2}
ROUNDED, COARSE = 1e-4, 2e-2


def config_of(kind, **changes):
    return TrainConfig.model_validate(
        tiny_config(6).model_dump(mode="json") | {"model": MODEL | {"kind": kind}} | changes
    )


@pytest.fixture
def on_gpu(monkeypatch):
    """Makes models ask for what they ask for on a GPU; counts how often."""
    asked = []

    def numerics(x):
        asked.append(x.dtype)
        return "fp32"

    for module in (adaln, dit):
        monkeypatch.setattr(module, "numerics_on", numerics)
    return asked


@pytest.mark.parametrize("dtype", beyond(1, ["bfloat16", "float32"]))
@pytest.mark.parametrize("kind", but(("mmdit",), ["dit", "st_dit", "mmdit"], ()))
def test_training_takes_the_same_way(tmp_path, monkeypatch, request, kind, dtype):
    config = config_of(kind, dtype=dtype, parallel={"activation_checkpointing": "selective"})
    Trainer(config, ClipStream(), tmp_path / "eager").run()
    asked = request.getfixturevalue("on_gpu")
    Trainer(config, ClipStream(), tmp_path / "fp32").run()
    assert asked
    expected, found = (losses(tmp_path / name) for name in ("eager", "fp32"))
    assert found == pytest.approx(expected, rel=ROUNDED if dtype == "float32" else COARSE)


@pytest.mark.parametrize("kind", but(["dit"], ["dit", "st_dit", "mmdit"], ()))
def test_a_compiled_block_has_the_same_gradients(on_gpu, kind):
    config = config_of(kind, model=MODEL | {"kind": kind, "layers": 1})
    draw = torch.Generator().manual_seed(0)
    found = []
    for compiled in (False, True):
        model = Bundle(config).dit
        for weight in model.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=draw.manual_seed(1)) * 0.1)
        for block in model.blocks if compiled else ():
            compile_block(block, backend="aot_eager")
        x_BCTHW = torch.randn(1, 24, 3, 8, 8, generator=draw.manual_seed(2))
        context_BMD = torch.randn(1, 5, 16, generator=draw)
        model(
            x_BCTHW, torch.full((1,), 0.3), context_BMD, torch.ones(1, 5, dtype=torch.bool)
        ).square().sum().backward()
        found.append(gradients(model))
    assert on_gpu
    assert max(relative_errors(found[1], found[0]).values()) < ROUNDED


def test_a_sampled_video_is_the_same(request):
    size = BUCKETS[0]
    wanted = SampleConfig(
        frames=size.frames, height=size.height, width=size.width, steps=4, guidance=3.0, solver="unipc"
    )
    config = config_of("dit")
    bundle = Bundle(config)
    draw = torch.Generator().manual_seed(0)
    for weight in bundle.dit.parameters():  # a new model's gates are shut, and its output is zero
        weight.data.copy_(torch.randn(weight.shape, generator=draw) * 0.1)
    expected = generate(bundle, config.losses, wanted, ["a wave"])
    asked = request.getfixturevalue("on_gpu")
    found = generate(bundle, config.losses, wanted, ["a wave"])
    assert asked
    assert (found.int() - expected.int()).abs().max() <= 1
