"""Memory that is predicted from configuration and shapes, against what the processor's allocator gives out."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import yaml
from torch.profiler import ProfilerActivity, profile

from reelweave.loader.buckets.assignment import Bucket, BucketConfig
from reelweave.loader.errors import UsageError
from reelweave.pipelines.cli import main
from reelweave.train.config.model import DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.config.optimizer import EmaConfig, Fp8Config
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.phases import Footprint
from reelweave.train.memory.shapes import StepShape, noise
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.dit import Block
from reelweave.train.models.precision.narrow import held_bytes
from reelweave.train.models.published.families.registry import VAES
from reelweave.train.parallel import activations
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.step.losses import losses
from reelweave.train.step.step_losses import StepLosses
from tests.bench.docs_commands import TRAIN
from tests.thorough import beyond, but, nightly, thorough
from tests.train.clips import tiny_config
from tests.train.models import diffusers_vaes
from tests.train.published import publish, publish_text, run_config

SIZES = {"hidden": 64, "heads": 4, "layers": 2}
KINDS = {
    "dit": DiTConfig(**SIZES),
    "st_dit": STDiTConfig(**SIZES, full_attention=True),
    "mmdit": MMDiTConfig(**SIZES, adaln_rank=8),
}
SHAPES = [StepShape(Bucket(5, 16, 16), 2, 0), StepShape(Bucket(3, 24, 32), 3, 0)]
FSDP = {"dp_replicate": 1, "dp_shard": "rest"}


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """The memory of what autograd saves, each storage once, without what a model always has."""

    def __init__(self, known):
        super().__init__(self.pack, lambda tensor: tensor)
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.found = {}

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.found[storage._cdata] = storage.nbytes()
        return tensor


def config_of(model=KINDS["dit"], dtype="float32", **parallel) -> TrainConfig:
    return tiny_config().model_copy(
        update={"model": model, "dtype": dtype, "parallel": ParallelConfig(**parallel)}
    )


PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


def step_of(config: TrainConfig, shape: StepShape) -> tuple[int, int]:
    """Bytes that autograd saved in a real step, and the most that the allocator had given out beside the state."""
    layout = lay_out(config.step, Ranks.of(config.parallel, World(0, 1, torch.device("cpu"))))
    batch, own = noise(config.text.max_text_tokens, shape, 1, 0), StepLosses(config.denominator)
    saved = Saved([*layout.bundle.parameters(), *layout.bundle.buffers()])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with saved:
            loss = own.add(batch, losses(layout.bundle, config, batch, torch.device("cpu")))
        loss.backward()
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return sum(saved.found.values()), max(itertools.accumulate(given_out(events)))


def given_out(events: Sequence[Any]) -> list[int]:
    """Bytes that the allocator gave out, in order; negative where they came back.

    Without those that a matrix product returns itself: on processors without products of bfloat16, oneDNN converts the
    factors to float32, in memory that no prediction knows and no GPU takes.
    """
    sizes: list[int] = []
    end_ns, begin = 0, 0  # of the latest product: its end, and its first size
    for event in events:
        if event.name() in PRODUCTS:
            end_ns, begin = event.start_ns() + event.duration_ns(), len(sizes)
        elif event.name() == "[memory]":
            size = event.nbytes()
            if size < 0 and event.start_ns() <= end_ns and -size in sizes[begin:]:
                del sizes[begin + sizes[begin:].index(-size)]
            else:
                sizes.append(size)
    return sizes


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("kind", "policy"),
    but(
        [("st_dit", "selective")],
        [("st_dit", "selective"), ("mmdit", "full"), ("dit", "none"), ("st_dit", "none"), ("mmdit", "none")],
        [("mmdit", "full"), ("dit", "none")],
    ),
)
def test_a_step_takes_what_was_predicted(kind, policy):
    config = config_of(KINDS[kind], activation_checkpointing=policy)
    for shape, found in zip(SHAPES, dry_run(config.step, SHAPES), strict=True):
        saved, most = step_of(config, shape)
        # Scalars here and there, of which autograd and the allocator know differently.
        assert found.step - found.state == pytest.approx(most, rel=1e-3)
        if policy == "none":
            assert found.kept == pytest.approx(saved, rel=1e-3)


@thorough
@pytest.mark.parametrize(
    ("policy", "kind"), but([("none", "dit")], [("none", "dit"), ("none", "st_dit"), ("full", "dit")], ())
)
def test_with_autocast_too(kind, policy):
    model = KINDS[kind].model_copy(update={"layers": 4})
    config = config_of(model, "bfloat16", activation_checkpointing=policy)
    shape = StepShape(Bucket(5, 64, 48), 2, 0)
    [found] = dry_run(config.step, [shape])
    _, most = step_of(config, shape)
    # Inside, references of the fused operators make tensors in float32, which kernels do not: of all tokens.
    of_all_tokens = 2 * 3 * 16 * 12 * model.hidden * 4
    assert -1000 < most - (found.step - found.state) < 2 * of_all_tokens
    if policy == "none":
        assert found.step - found.state == pytest.approx(most, rel=1e-3)


@pytest.mark.parametrize(
    "lora",
    [
        pytest.param(None, marks=nightly),
        {"rank": 4},
        pytest.param({"rank": 4, "base_dtype": "nf4"}, marks=thorough),
    ],
    ids=["whole", "adapters", "adapters on 4 bits"],
)
@pytest.mark.parametrize("fused", beyond(1, [True, False]), ids=["fused", "as published"])
def test_published_models_too(lora, fused, tmp_path):
    config = run_config(tmp_path, "wan", lora=lora)
    config = config.model_copy(update={"model": config.model.model_copy(update={"fused": fused})})
    [found] = dry_run(config.step, SHAPES[:1])
    saved, most = step_of(config, SHAPES[0])
    assert found.kept == pytest.approx(saved, rel=1e-3)
    predicted = found.step - found.state
    if fused:
        # Inside, references make tensors of all tokens, which kernels do not: some ten each of queries and keys.
        of_all_tokens = 2 * 3 * 4 * 4 * 32 * 4
        assert 0 < most - predicted < 24 * of_all_tokens
    else:
        assert predicted == pytest.approx(most, rel=0.03)


@pytest.mark.parametrize("kind", beyond(1, ["nf4", "float8"]))
def test_few_bits_are_predicted(kind, tmp_path):
    config = run_config(tmp_path, "wan", lora={"rank": 4})
    narrow = config.model_copy(update={"lora": config.lora.model_copy(update={"base_dtype": kind})})
    sizes = [tuple(layer.weight.shape) for layer in Bundle(config.modules, meta=True).dit.frozen_layers()]
    [whole], [fewer] = (dry_run(one.step, SHAPES[:1]) for one in (config, narrow))
    assert whole.state - fewer.state == sum(4 * math.prod(size) for size in sizes) - held_bytes(sizes, kind)
    # Weights that are read back are kept nowhere.
    assert fewer.kept <= whole.kept


def test_what_lies_on_the_host_is_not_predicted(monkeypatch):
    monkeypatch.setattr(activations, "_MIN_OFFLOADED_BYTES", 1000)
    model = KINDS["dit"].model_copy(update={"layers": 4})
    full, offload = (
        dry_run(config_of(model, activation_checkpointing=policy).step, SHAPES[:1])[0]
        for policy in ("full", "offload")
    )
    tokens = 2 * 3 * 4 * 4 * model.hidden * 4  # of 5 frames of 16x16 pixels
    assert offload.state == full.state
    assert full.kept - offload.kept >= 4 * tokens
    assert offload.step < full.step


@pytest.mark.parametrize("family", but(("wan",), diffusers_vaes.FAMILIES, ("hunyuan", "cosmos")))
def test_a_published_pipeline_needs_no_weights(family, tmp_path):
    """The VAE's had to be there, while config.json was enough of the transformer and the text encoder."""
    text = publish_text(tmp_path, width=8) | {"kind": "transformers", "max_text_tokens": 4}
    vae = diffusers_vaes.drawn(family)
    vae.save_pretrained(tmp_path / "vae")
    factors = VAES[type(vae).__name__](vae).compression
    tokenizer = {"kind": "diffusers", "name": str(tmp_path)}
    tokenizer |= dict(zip(("frames", "height", "width"), factors, strict=True))
    channels = VAES[type(vae).__name__](vae).channels
    model = publish(tmp_path, "wan", channels=channels)
    values = {"model": model, "tokenizer": tokenizer, "text": text, "lora": {"rank": 4}}
    config = TrainConfig.model_validate(tiny_config().model_dump() | values)
    shapes = [StepShape(Bucket(1 + factors[0], 8 * factors[1], 8 * factors[2]), 1, 0)]
    whole = dry_run(config.step, shapes)
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    assert dry_run(config.step, shapes) == whole
    assert whole[0].state > 0


def footprint(ranks=1, **parallel) -> Footprint:
    config = config_of(dtype="bfloat16", **parallel).model_copy(update={"ema": EmaConfig()})
    [found] = dry_run(config.step, SHAPES[:1], ranks)
    return found


@thorough
def test_layouts_divide_what_they_divide():
    whole = footprint()
    laid_out = lay_out(config_of().step, Ranks.of(config_of().parallel, World(0, 1, torch.device("cpu"))))
    weights = sum(weight.numel() for weight in laid_out.weights.values())
    # Weights, gradients, two moments and the average, float32; beside them the tokenizer's basis and AdamW's counts.
    assert whole.state == pytest.approx(20 * weights, rel=0.01)
    assert footprint(4).state == whole.state
    fsdp, zero = footprint(4, **FSDP), footprint(4, **FSDP, shard="optimizer")
    assert fsdp.state == pytest.approx(whole.state / 4, rel=0.05)
    # docs/layouts.md: 6 P + 16 P / N, and the average 4 P / N.
    assert zero.state == pytest.approx((6 + 20 / 4) * weights, rel=0.02)
    # Copies of the weights in bfloat16, that autocast keeps, are gathered by FSDP and are all there is under ZeRO-1.
    assert fsdp.kept < whole.kept
    assert zero.kept < whole.kept
    cut = footprint(2, ulysses=2, shard="optimizer")
    assert cut.kept == pytest.approx(zero.kept / 2, rel=0.1)
    divided = footprint(2, tp=2)
    assert 0.5 * whole.state < divided.state < 0.65 * whole.state
    assert 0.5 * whole.kept < divided.kept < 0.8 * whole.kept
    assert whole.peak - whole.ahead == whole.step > whole.state + whole.kept
    assert whole.update == whole.state + 4 * weights


@thorough
def test_fp8_needs_no_gpu_here():
    config = config_of(dtype="bfloat16").model_copy(update={"fp8": Fp8Config()})
    [found] = dry_run(config.step, SHAPES[:1])
    # No copy of a converted layer's weights in bfloat16 is kept.
    assert found.kept < footprint().kept


SMALL, LARGE = StepShape(Bucket(5, 16, 16), 1, 0), StepShape(Bucket(9, 64, 64), 4, 0)
"""Both ends of the range where the peak lies in the forward, or in the backward."""
ONCE = FSDP | {"reduce_gradients": "step", "activation_checkpointing": "selective"}


@pytest.mark.parametrize(
    ("kind", "parallel", "dtype", "shapes"),
    [
        ("dit", {"activation_checkpointing": "full"}, "bfloat16", [LARGE]),
        pytest.param("dit", {"activation_checkpointing": "full"}, "bfloat16", [SMALL], marks=nightly),
        pytest.param("mmdit", FSDP | {"ulysses": 2}, "bfloat16", [LARGE], marks=nightly),
        pytest.param("dit", ONCE, "float32", [LARGE], marks=nightly),
        pytest.param("mmdit", {"tp": 2}, "float32", [LARGE], marks=nightly),
    ],
)
def test_few_of_equal_blocks_tell_what_all_take(kind, parallel, dtype, shapes, monkeypatch):
    # As few as are too many to run all of them.
    model = KINDS[kind].model_copy(update={"layers": 7})
    config = config_of(model, dtype, **parallel)
    found = dry_run(config.step, shapes, 8)
    monkeypatch.setattr("reelweave.train.memory.dry_run._FEW", model.layers)
    assert found == dry_run(config.step, shapes, 8)


@thorough
def test_equal_blocks_are_run_once_for_all():
    runs = 0

    def count(module, *_):
        nonlocal runs
        runs += isinstance(module, Block)

    with torch.nn.modules.module.register_module_forward_hook(count):
        dry_run(config_of(KINDS["dit"].model_copy(update={"layers": 60})).step, SHAPES[:1])
    assert runs == 3 + 4 + 5


def test_what_the_compiler_or_the_step_decides_is_not_predicted():
    config = config_of(activation_checkpointing="memory_budget", compile=True)
    with pytest.raises(UsageError, match="memory_budget is left to the compiler"):
        dry_run(config.step, SHAPES)
    with pytest.raises(UsageError, match=r"parallel\.pp=1 alone"):
        dry_run(config_of(pp=2).step, SHAPES, ranks=2)


@pytest.fixture
def run_file(tmp_path):
    config = config_of(dtype="bfloat16")
    buckets = BucketConfig(
        frames=(9,),
        sizes=((64, 48),),
        max_text_tokens=9,
        memory_tokens=6000,
        compression=config.compression,
    )
    path = tmp_path / "train.yaml"
    run = {"dataset": "is/not/opened", "out": str(tmp_path / "run")}
    run |= {"stream": {"buckets": buckets.model_dump(mode="json")}, "train": config.model_dump(mode="json")}
    path.write_text(yaml.safe_dump(run))
    return str(path)


def test_the_command_says_what_fits_before_there_is_a_gpu(run_file, capsys, monkeypatch):
    found = {}

    def once(config, shapes, ranks):
        """Peaks of a configuration, which do not depend on what fits."""
        asked = (repr(config), *shapes, ranks)
        found[asked] = found.get(asked) or dry_run(config, shapes, ranks)
        return found[asked]

    monkeypatch.setattr("reelweave.pipelines.benchmarks.shapes.dry_run", once)
    command = ["bench", "shapes", "--predict", "--config", run_file, "--ranks", "4", "--memory-gib"]
    layout = ["--set", "train.parallel.dp_replicate=1", "--set", "train.parallel.dp_shard=rest"]
    assert main([*command, "0.1", *layout, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    smallest, *_, largest = told["shapes"]
    assert smallest["state_gib"] == largest["state_gib"] < smallest["peak_gib"] < largest["peak_gib"] < 0.1
    tokens = [shape["batch"] * shape["length"] for shape in (smallest, largest)]
    slope_gib = (largest["peak_gib"] - smallest["peak_gib"]) / (tokens[1] - tokens[0])
    assert told["memory_tokens"] == pytest.approx(
        (0.1 - largest["peak_gib"]) / slope_gib + tokens[1], rel=0.1
    )
    assert main([*command, "0.002", *layout]) == 2
    told = capsys.readouterr().err
    assert "activation_checkpointing=full" in told
    assert "shard weights" not in told
    policy = "train.parallel.activation_checkpointing"
    assert main([*command, "0.002", *layout, "--set", f"{policy}=full"]) == 2
    assert f"{policy}=offload" in capsys.readouterr().err
    assert main([*command, "0.002", *layout, "--set", f"{policy}=offload"]) == 2
    told = capsys.readouterr().err
    assert policy not in told
    assert "start more ranks" in told
    assert main([*command, "-1"]) == 2


@thorough
def test_shapes_that_lie_on_no_line_are_told_all_the_same(tmp_path, capsys):
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(TRAIN))
    command = ["bench", "shapes", "--predict", "--config", str(path), "--ranks", "64", "--memory-gib", "75"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["memory_tokens"] is None
    assert len(told["shapes"]) > 6
    assert "off a line" in printed.err
