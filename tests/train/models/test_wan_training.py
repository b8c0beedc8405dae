"""Training of Wan's image-to-video models, and of one of its two experts; what others make of it."""

import importlib
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.lora import LORA_FILE
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.objective import ConstantShift, FlowConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.objectives.draw import draw
from reelweave.train.objectives.flow import RectifiedFlow
from reelweave.train.parallel.fsdp import shard
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.layouts.zero1 import ZeRO1
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_published, load_trained
from reelweave.train.step.losses import losses
from reelweave.train.step.noise import draw_noise
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.models.wan_pipelines import FORMS, IMAGE, configured, pipeline, publish

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {form: publish(tmp_path_factory.mktemp("wan"), form) for form in FORMS}


@pytest.mark.parametrize("form", IMAGE)
def test_a_loss_is_that_of_the_pipelines_inputs(folders, form):
    config = configured(folders[form], form, first_frames={"dropout": 0.0})
    bundle, batch = Bundle(config), ClipStream().microbatch(0)
    found = losses(bundle, config, batch, CPU).each.detach()

    pipe, count = pipeline(folders[form], form), len(batch.keys)
    clips = batch.video_BCTHW.float() / 127.5 - 1
    clean = bundle.tokenizer.encode(batch.video_BCTHW)
    drawn = draw(0.1, config.seed, batch.keys, batch.passes, clean.shape[2], config.first_frames)
    noise = draw_noise(config.seed, batch.keys, batch.passes, clean.shape[1:], CPU)
    tokens = bundle.dit.tokens(clean.shape[2:])
    t = torch.stack([bundle.objective.time(normal, tokens) for normal in drawn.normals])
    noisy = (1 - t)[:, None, None, None, None] * clean + t[:, None, None, None, None] * noise
    target = noise - clean
    captions = ["" if drop else caption for drop, caption in zip(drawn.dropped, batch.captions, strict=True)]
    text = bundle.dit.fill_context(*bundle.text(captions))
    for sample in range(count):
        one = slice(sample, sample + 1)
        _, *given = pipe.prepare_latents(
            clips[one, :, 0], 1, 4, 16, 16, 5, torch.float32, CPU, latents=noisy[one]
        )
        if form == "2.2 TI2V 5B":
            picture, free = given
            x = free * noisy[one] + (1 - free) * picture
            times = (free[0][0][:, ::2, ::2] * 1000 * t[sample]).flatten()[None]
        else:
            x, times = torch.cat([noisy[one], *given], dim=1), 1000 * t[one]
        with torch.no_grad():
            velocity = pipe.transformer(x, times, text[one], return_dict=False)[0]
        errors = (velocity - target[one]).square()
        expected = errors[:, :, 1:] if form == "2.2 TI2V 5B" else errors
        assert float(found[sample]) == pytest.approx(float(expected.mean()), rel=1e-4)


@pytest.mark.parametrize("name", ["logit_normal", "uniform", "mode"])
def test_an_expert_draws_the_times_of_its_side_alone(name):
    config = FlowConfig(time=name, time_mean=0.3, shift=ConstantShift(factor=3.0))
    normals = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    whole = RectifiedFlow(config).time(normals, 1)
    for low, high in ((0.875, 1.0), (0.0, 0.875)):
        times = RectifiedFlow(config, (low, high)).time(normals, 1)
        assert times.dtype == torch.float32
        assert low <= float(times.min())
        assert float(times.max()) <= high
        assert bool((times[normals.argsort()].diff() >= 0).all()), "it rises with the normal number"
        inside = whole[(whole >= low) & (whole <= high)].double()
        shares = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
        found, expected = torch.quantile(times.double(), shares), torch.quantile(inside, shares)
        assert float((found - expected).abs().max()) < 0.03 * (high - low), (low, high)


def test_a_run_of_one_expert_is_of_its_times(folders):
    form = "2.2 A14B T2V"
    sides = {"transformer": (0.75, 1.0), "transformer_2": (0.0, 0.75)}
    for name, times in sides.items():
        bundle = Bundle(configured(folders[form], form, model={"subfolder": name}))
        assert bundle.dit.times == bundle.objective.times == times
    told = configured(folders[form], form, model={"boundary": 0.5})
    assert Bundle(told).objective.times == (0.5, 1.0)


@thorough
def test_experts_of_a_run_each_go_back_where_they_came_from(diffusers, tmp_path):
    """Adapters and whole weights of one expert: read by diffusers, and by sampling with the other one."""
    form = "2.2 A14B T2V"
    folder, own = publish(tmp_path / "wan", form, channels=24), tiny_config(2, every_steps=2, lr=1e-2)
    update = {"tokenizer": own.tokenizer, "schedule": own.schedule, "optimizer": own.optimizer}
    update |= {"checkpoint": own.checkpoint}
    config = configured(folder, form, **update)
    adapted, runs = {}, {}
    for name in ("transformer", "transformer_2"):
        adapted[name] = configured(folder, form, **update, model={"subfolder": name}, lora={"rank": 4})
        Trainer(adapted[name], ClipStream(), tmp_path / name).run()
        runs[name] = load_trained(str(tmp_path / name), CPU)
        export(runs[name], tmp_path / f"{name}-lora")
    x, text = torch.randn(1, 24, 2, 4, 4), torch.randn(1, 6, 8)
    mask, t = torch.ones(1, 6, dtype=torch.bool), torch.tensor([0.5])

    def answer(dit):
        with torch.no_grad():
            return dit(x, t, text, mask)

    expected = {name: answer(run.bundle.dit) for name, run in runs.items()}
    assert (expected["transformer"] - expected["transformer_2"]).abs().max() > 1e-2

    parts = {
        name: diffusers.WanTransformer3DModel.from_pretrained(folder, subfolder=name)
        for name in ("transformer", "transformer_2")
    }
    pipe = diffusers.WanPipeline(None, None, diffusers.AutoencoderKLWan(base_dim=4), None, **parts)
    pipe.load_lora_weights(tmp_path / "transformer-lora")
    pipe.load_lora_weights(tmp_path / "transformer_2-lora", load_into_transformer_2=True)
    for name, dit in parts.items():
        with torch.no_grad():
            theirs = dit(x, 1000 * t, text, return_dict=False)[0]
        torch.testing.assert_close(theirs, expected[name], rtol=1e-4, atol=1e-5)

    def pair_of(trained):
        assert trained.experts is not None
        return answer(trained.experts.high_noise), answer(trained.experts.low_noise)

    from_runs = with_experts(runs["transformer_2"], CPU, checkpoint=str(tmp_path / "transformer"))
    from_files = with_experts(
        load_published(config, CPU, tmp_path / "transformer-lora"), CPU, tmp_path / "transformer_2-lora"
    )
    for found in (pair_of(from_runs), pair_of(from_files)):
        torch.testing.assert_close(found, tuple(expected.values()), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"trained on transformer_2, and are given for transformer:"):
        load_published(config, CPU, tmp_path / "transformer_2-lora" / LORA_FILE)
    with pytest.raises(UsageError, match=r"take a run of .*, transformer_2"):
        with_experts(runs["transformer"], CPU, checkpoint=str(tmp_path / "transformer"))

    export(runs["transformer_2"], tmp_path / "merged", merged=True)
    for old in (folder / "transformer_2").iterdir():
        old.unlink()
    with pytest.raises(UsageError, match=r"neither transformer_2/config\.json"):
        with_experts(load_published(config, CPU), CPU)
    (folder / "transformer_2").rmdir()
    (tmp_path / "merged").rename(folder / "transformer_2")
    found = with_experts(load_published(config, CPU), CPU).experts
    torch.testing.assert_close(answer(found.low_noise), expected["transformer_2"], rtol=1e-4, atol=1e-5)


def test_what_a_folder_does_not_say_is_asked_for(tmp_path):
    folder = publish(tmp_path, "2.2 A14B I2V")
    given, config = FirstFramesConfig(dropout=0), DiffusersConfig(name=str(folder))
    refused = {
        "always goes on from one picture": {"first_frames": None},
        "dropout: 0": {"first_frames": FirstFramesConfig()},
        "take transformer or transformer_2": {
            "config": config.model_copy(update={"subfolder": "transformer_3"})
        },
    }
    (folder / "transformer_3").symlink_to(folder / "transformer")
    for said, changed in refused.items():
        asked = {"config": config, "first_frames": given} | changed
        with pytest.raises(UsageError, match=said):
            build_denoiser(asked["config"], 4, 8, asked["first_frames"])
    index = folder / "model_index.json"
    told = json.loads(index.read_text())
    index.write_text(json.dumps(told | {"boundary_ratio": None}))
    with pytest.raises(UsageError, match=r"no boundary_ratio .* set model\.boundary"):
        build_denoiser(config, 4, 8, given)
    index.unlink()
    with pytest.raises(UsageError, match=r"has two experts, and no boundary_ratio"):
        build_denoiser(config, 4, 8, given)
    index.write_text(json.dumps(told))
    part = folder / "transformer" / "config.json"
    part.write_text(json.dumps(json.loads(part.read_text()) | {"image_dim": 12}))
    with pytest.raises(UsageError, match="image_dim=12"):
        build_denoiser(config, 4, 8, given)
    plain = publish(tmp_path / "plain", "2.1 T2V")
    with pytest.raises(UsageError, match=r"from text alone.*train\.first_frames"):
        build_denoiser(DiffusersConfig(name=str(plain)), 4, 8, given)


def test_a_picture_needs_pixels_and_frames_behind_it(folders):
    form = "2.2 A14B I2V"
    config = configured(folders[form], form)
    ranks = Ranks.of(ParallelConfig(), World(0, 1, CPU))
    with pytest.raises(UsageError, match="train on the version with clips"):
        lay_out(config.step, ranks, StoredEncoders(4, torch.zeros(1, 8)))
    dit = Bundle(config).dit
    with pytest.raises(UsageError, match=r"stills have none.*stream\.buckets\.frames"):
        dit.condition(torch.zeros(2, 4, 1, 2, 2), [0, 0])


@pytest.mark.parametrize("form", IMAGE)
def test_operations_of_what_is_given_are_counted(folders, form):
    config = DiffusersConfig(name=str(folders[form]), fused=False)
    with torch.device("meta"):  # where attention is counted as the products it is made of
        denoiser = build_denoiser(config, 4, 8, FirstFramesConfig(dropout=0))
        x = torch.randn(1, 4 + denoiser.condition_channels, 4, 4, 4)
        text, mask = torch.randn(1, 5, 8), torch.ones(1, 5, dtype=torch.bool)
        with FlopCounterMode(display=False) as counter:
            out = denoiser(x, torch.rand(1), text, mask)
            forward = counter.get_total_flops()
            out.sum().backward()
    found = denoiser.flops((4, 4, 4), 5)
    assert found.forward == pytest.approx(forward, rel=0.01)
    assert found.backward == pytest.approx(counter.get_total_flops() - forward, rel=0.01)


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "fsdp"])
def test_times_are_embedded_in_float32_as_pipelines_embed_them(diffusers, folders, sharded):
    """Under autocast, and where FSDP gathers weights in bfloat16."""
    form = next(iter(folders))
    config = configured(folders[form], form).model_copy(update={"dtype": "bfloat16"})
    dit = Bundle(config).dit
    name = "condition_embedder.time_embedder"
    theirs = diffusers.WanTransformer3DModel.from_pretrained(
        folders[form], subfolder="transformer", torch_dtype=torch.bfloat16
    )
    times = torch.linspace(0, 1, 8 * 16).view(8, 16)
    theirs_in = torch.nn.functional.pad(times, (0, theirs.get_submodule(name).linear_1.in_features - 16))
    expected = theirs.get_submodule(name)(theirs_in)
    assert expected.dtype == torch.float32

    importlib.import_module("torch.distributed.nn.functional")  # or it would keep the group below
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        if sharded:
            ranks = Ranks.of(ParallelConfig(dp_replicate=1, dp_shard=1), World(0, 1, CPU))
            shard(dit, ranks, "bfloat16")
        with torch.autocast("cpu", torch.bfloat16):
            found = dit.model.get_submodule(name)(theirs_in)
    finally:
        torch.distributed.destroy_process_group()
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layout", ["fsdp", "zero"])
def test_tables_and_norms_stay_float32_as_pipelines_have_them(folders, layout):
    """No value that diffusers keeps in float32 is rounded, where other weights are gathered or held in bfloat16."""
    form = next(iter(folders))
    config = configured(folders[form], form)
    model = config.model.model_copy(update={"dtype": "float32"})
    config = config.model_copy(update={"dtype": "bfloat16", "model": model, "lora": None})
    bundle = Bundle(config)
    theirs = set(bundle.dit.model._keep_in_fp32_modules)
    wanted = {
        f"dit.model.{name}": weight.detach().clone()
        for name, weight in bundle.dit.model.named_parameters()
        if theirs & set(name.split("."))
    }
    assert sum("scale_shift_table" in name for name in wanted) == 1 + len(bundle.dit.model.blocks)
    importlib.import_module("torch.distributed.nn.functional")  # or it would keep the group below
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        ranks = Ranks.of(ParallelConfig(dp_replicate=1, dp_shard=1), World(0, 1, CPU))
        if layout == "zero":
            ZeRO1(bundle, config, ranks)
            found = dict(bundle.named_parameters())
            held = {name: found[name].detach().clone() for name in wanted}
        else:
            shard(bundle.dit, ranks, "bfloat16")
            bundle.dit.unshard()
            for module in bundle.dit.modules():
                if isinstance(module, torch.distributed.fsdp.FSDPModule):
                    module.unshard()
            held = {
                name: weight.detach().clone() for name, weight in bundle.named_parameters() if name in wanted
            }
    finally:
        torch.distributed.destroy_process_group()
    assert held.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert held[name].dtype == torch.float32, name
        assert torch.equal(held[name], weight), name
