"""LoRA: what is trained, saved and averaged, and what others make of it."""

import itertools
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from reelweave.loader.errors import UsageError
from reelweave.train.config.lora import LORA_FILE, LoraConfig
from reelweave.train.config.model import DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.lora import adapt
from reelweave.train.parallel.dit import parallelize
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import Trained, load_published, load_trained
from tests.thorough import beyond, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.models import wan_pipelines
from tests.train.published import run_config
from tests.train.saved import losses, tensors

LORA = {"rank": 4, "alpha": 8.0}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def wan(tmp_path_factory):
    """A finished run of adapters on a tiny Wan: its folder and configuration."""
    folder = tmp_path_factory.mktemp("wan")
    config = run_config(folder, "wan", 24, lr=1e-2, lora=LORA, ema={"decay": 0.9})
    return folder, config, Trainer(config, ClipStream(), folder / "run").run()


def asked():
    torch.manual_seed(1)
    return (
        torch.randn(1, 24, 2, 4, 4),
        torch.rand(1),
        torch.randn(1, 5, 8),
        torch.ones(1, 5, dtype=torch.bool),
    )


def answer_of(trained):
    with torch.no_grad():
        return trained.bundle.dit(*asked())


def answer(model, dit):
    x, t, context, mask = asked()
    with torch.no_grad():
        return model(x, 1000 * t, dit.fill_context(context, mask), return_dict=False)[0]


def test_adapters_learn_and_nothing_else_is_saved(wan):
    folder, config, result = wan
    assert result.last_loss < 0.95 * result.first_loss
    before, after = Bundle(config), load_trained(str(folder / "run"), CPU, "model").bundle
    for name, weight in after.named_parameters():
        same = torch.equal(weight, before.get_parameter(name))
        assert same == (".lora_" not in name), name
    for group in ("model", "ema"):
        saved = tensors(folder / "run", group)
        assert set(saved) == set(after.trained_weights())
        assert all(".lora_" in name for name in saved)
    # Two matrices of rank 4 on four layers of 32 x 32, in two attentions of two blocks.
    assert sum(weight.numel() for weight in saved.values()) == 2 * 2 * 4 * 2 * 4 * 32


def test_an_adapter_changes_nothing_before_it_has_learned(tmp_path):
    adapted = run_config(tmp_path, "wan", lora=LORA)
    plain = adapted.model_copy(update={"lora": None})
    with torch.no_grad():
        torch.testing.assert_close(Bundle(adapted).dit(*asked()), Bundle(plain).dit(*asked()))


def test_a_target_that_names_no_layer_is_refused_with_the_nearest_names(tmp_path):
    config = run_config(tmp_path, "wan", 2, lora=LORA | {"targets": ["to_q", "to_kk"]})
    with pytest.raises(UsageError, match=r"ends in 'to_kk' \(nearest: .*\bto_k\b.*\); correct it"):
        Trainer(config, ClipStream(), tmp_path / "run").run()
    # What an earlier version has trained is still read.
    assert "to_kk" in Bundle(config).dit.unknown_targets
    assert not Bundle(
        run_config(tmp_path, "wan", lora=LORA | {"targets": ["to_q", "0.proj"]})
    ).dit.unknown_targets


@thorough
def test_a_broken_run_goes_on_to_the_same_numbers(wan, tmp_path):
    folder, config, _ = wan

    class Ended(ClipStream):
        def __iter__(self):
            return itertools.islice(super().__iter__(), 4)

    with pytest.raises(Exception, match="before step 5"):
        Trainer(config, Ended(), tmp_path).run()
    Trainer(config, ClipStream(), tmp_path).run()
    assert losses(tmp_path) == pytest.approx(losses(folder / "run"), rel=1e-5)


@pytest.mark.parametrize("group", ["ema", "model"])
def test_diffusers_and_sampling_read_the_adapters(diffusers, wan, tmp_path, group):
    folder, config, _ = wan
    trained = load_trained(str(folder / "run"), CPU, group)
    export(trained, tmp_path / "lora")
    with safe_open(tmp_path / "lora" / LORA_FILE, "pt") as file:
        described = file.metadata()["lora_adapter_metadata"]
    assert json.loads(described)["transformer.lora_alpha"] == json.loads(described)["transformer.r"] == 4
    base = diffusers.WanTransformer3DModel.from_pretrained(folder / "transformer")
    plain = answer(base, trained.bundle.dit)
    weights, metadata = diffusers.WanPipeline.lora_state_dict(tmp_path / "lora", return_lora_metadata=True)
    diffusers.WanPipeline.load_lora_into_transformer(weights, base, metadata=metadata)
    with torch.no_grad():
        expected = trained.bundle.dit(*asked())
    found = answer(base, trained.bundle.dit)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 1e-2
    # The published model of a configuration, with these adapters and without.
    assert torch.equal(answer_of(load_published(config, CPU, tmp_path / "lora")), expected)
    torch.testing.assert_close(answer_of(load_published(config, CPU)), plain, rtol=1e-4, atol=1e-5)
    weights = load_file(tmp_path / "lora" / LORA_FILE)
    weights.popitem()
    save_file(weights, tmp_path / "less.safetensors", {"lora_adapter_metadata": described})
    with pytest.raises(UsageError, match=r"lacks matrices, 1 in all: blocks\.\d\.attn"):
        load_published(config, CPU, tmp_path / "less.safetensors")
    save_file({}, tmp_path / "bare.safetensors")
    with pytest.raises(UsageError, match="holds no tensors"):
        load_published(config, CPU, tmp_path / "bare.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"use_rslora": True},
        {"alpha_pattern": {"to_q": 3.0}},
        {"use_rslora": True, "alpha_pattern": {r".*\.to_v": 9}},
    ],
    ids=str,
)
def test_adapters_of_others_act_by_all_settings_of_their_scale(diffusers, wan, tmp_path, changes):
    folder, config, _ = wan
    export(load_trained(str(folder / "run"), CPU, "model"), tmp_path / "lora")
    weights = load_file(tmp_path / "lora" / LORA_FILE)
    settings = {"r": 4, "lora_alpha": 16.0, "target_modules": ["to_q", "to_k", "to_v", "to_out.0"], **changes}

    def saved(name, **more):
        described = json.dumps({f"transformer.{key}": value for key, value in {**settings, **more}.items()})
        save_file(weights, tmp_path / name, {"lora_adapter_metadata": described, "format": "pt"})
        return tmp_path / name

    base = diffusers.WanTransformer3DModel.from_pretrained(folder / "transformer")
    read, metadata = diffusers.WanPipeline.lora_state_dict(
        saved("own.safetensors"), return_lora_metadata=True
    )
    diffusers.WanPipeline.load_lora_into_transformer(read, base, metadata=metadata)
    ours = load_published(config, CPU, tmp_path / "own.safetensors")
    torch.testing.assert_close(answer_of(ours), answer(base, ours.bundle.dit), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="use_dora=True"):
        load_published(config, CPU, saved("dora.safetensors", use_dora=True))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Adapters with drawn weights, at a scale of 1.5, on one of two experts; and the folder of the pipeline."""
    folder = wan_pipelines.publish(tmp_path_factory.mktemp("experts"), "2.2 A14B T2V")
    config = wan_pipelines.configured(folder, "2.2 A14B T2V", lora={"rank": 4, "alpha": 6.0})
    bundle = Bundle(config).eval()
    torch.manual_seed(2)
    for weight in bundle.trained_weights().values():
        torch.nn.init.normal_(weight.data, std=0.1)
    return folder, Trained("drawn", config, bundle, 1, "model")


@pytest.mark.parametrize("reads_metadata", [True, False])
def test_adapters_act_alike_in_readers_that_ignore_alpha(diffusers, drawn, tmp_path, reads_metadata):
    folder, trained = drawn
    export(trained, tmp_path / "lora")
    base = diffusers.WanTransformer3DModel.from_pretrained(folder, subfolder="transformer")
    pipe = diffusers.WanPipeline(None, None, wan_pipelines.vae(), None, transformer=base)
    x, t, context = torch.randn(1, 4, 2, 4, 4), torch.rand(1), torch.randn(1, 6, 8)
    if reads_metadata:
        pipe.load_lora_weights(tmp_path / "lora")
    else:
        pipe.load_lora_weights(load_file(tmp_path / "lora" / LORA_FILE))
    with torch.no_grad():
        expected = trained.bundle.dit(x, t, context, torch.ones(1, 6, dtype=torch.bool))
        found = base(x, 1000 * t, context, return_dict=False)[0]
        base.disable_lora()
        plain = base(x, 1000 * t, context, return_dict=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - plain).abs().max() > 1e-2


def test_an_exported_file_names_its_base_and_other_bases_are_said(diffusers, wan, tmp_path, caplog):
    """PEFT and diffusers keep `base_model_name_or_path`; diffusers compares nothing and would refuse unknown keys."""
    folder, config, _ = wan
    trained = load_trained(str(folder / "run"), CPU, "model")
    export(trained, tmp_path / "lora")
    export(trained, tmp_path / "again")
    file = tmp_path / "lora" / LORA_FILE
    assert file.read_bytes() == (tmp_path / "again" / LORA_FILE).read_bytes()
    with safe_open(file, "pt") as opened:
        base = json.loads(opened.metadata()["reelweave_base"])
    assert base == {"name": f"{folder}, transformer", "sha256": trained.base.sha256}
    model = diffusers.WanTransformer3DModel.from_pretrained(folder / "transformer")
    pipe = diffusers.WanPipeline(None, None, wan_pipelines.vae(), None, transformer=model)
    pipe.load_lora_weights(tmp_path / "lora", adapter_name="waves")
    assert model.peft_config["waves"].base_model_name_or_path == str(folder)
    load_published(config, CPU, tmp_path / "lora")
    assert "trained on" not in caplog.text
    other = run_config(tmp_path / "other", "wan", lora=LORA)
    [weights] = (tmp_path / "other" / "transformer").glob("*.safetensors")
    save_file({name: weight + 0.05 for name, weight in load_file(weights).items()}, weights, {"format": "pt"})
    load_published(other, CPU, tmp_path / "lora")
    assert f"{tmp_path / 'lora'}: its adapters were trained on {folder}, transformer (sha256 " in caplog.text
    assert f"the base weights are {tmp_path / 'other'}, transformer (sha256 " in caplog.text


@pytest.mark.parametrize("merged", [True, False])
def test_an_export_is_rounded_once_where_asked(diffusers, wan, tmp_path, merged):
    """Merged in float32 and rounded at last; diffusers keeps the modules that it wants in float32."""
    folder, _, _ = wan

    def made(name, dtype):
        export(load_trained(str(folder / "run"), CPU, "model"), tmp_path / name, merged, dtype)
        [file] = (tmp_path / name).glob("*.safetensors")
        return load_file(file)

    wide, narrow = made("wide", None), made("narrow", "bfloat16")
    kept = set(diffusers.WanTransformer3DModel._keep_in_fp32_modules)
    for name, weight in narrow.items():
        expected = wide[name] if kept & set(name.split(".")) else wide[name].bfloat16()
        assert weight.dtype == expected.dtype, name
        assert torch.equal(weight, expected), name
    assert torch.bfloat16 in {weight.dtype for weight in narrow.values()}
    if merged:
        loaded = diffusers.WanTransformer3DModel.from_pretrained(
            tmp_path / "narrow", torch_dtype=torch.bfloat16
        )
        assert all(torch.equal(weight, narrow[name]) for name, weight in loaded.named_parameters())


def test_exported_files_are_the_same_bytes_each_time(drawn, tmp_path):
    """The order of metadata keys differed by process, and with it the digest of the file."""
    _, trained = drawn
    export(trained, tmp_path / "first")
    data = (tmp_path / "first" / LORA_FILE).read_bytes()
    told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert list(told) == ["format", "lora_adapter_metadata", "reelweave_subfolder"]
    for number in range(4):
        export(trained, tmp_path / str(number))
        assert (tmp_path / str(number) / LORA_FILE).read_bytes() == data


def test_merged_it_is_a_published_model_of_its_own(diffusers, wan, tmp_path):
    folder, _, _ = wan
    trained = load_trained(str(folder / "run"), CPU)
    with torch.no_grad():
        expected = trained.bundle.dit(*asked())
    export(trained, tmp_path / "merged", merged=True)
    usual = (tmp_path / "merged").stat().st_mode & 0o666
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "merged").iterdir()} == {usual}
    model = diffusers.WanTransformer3DModel.from_pretrained(tmp_path / "merged")
    names = set(diffusers.WanTransformer3DModel.from_pretrained(folder / "transformer").state_dict())
    assert set(model.state_dict()) == names
    torch.testing.assert_close(answer(model, trained.bundle.dit), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["cogvideox", "hunyuan", "cosmos"])
def test_every_family_has_layers_that_are_adapted(tmp_path, variant):
    bundle = Bundle(run_config(tmp_path, variant, lora=LORA))
    trained = bundle.trained_weights()
    assert trained
    assert all(name.startswith("dit.") and ".lora_" in name for name in trained)
    export_layers = {name.split(".lora_")[0] for name in trained}
    attentions = [name for name, _ in bundle.dit.named_modules() if name.endswith((".to_q", ".to_v"))]
    assert {f"dit.{name}" for name in attentions if "refiner" not in name} <= export_layers


@thorough
def test_a_frozen_base_may_be_bfloat16(tmp_path):
    config = run_config(
        tmp_path,
        "wan",
        4,
        lora=LORA,
        dtype="bfloat16",
        parallel={"activation_checkpointing": "full"},
    )
    config = TrainConfig.model_validate(
        config.model_dump() | {"model": config.model.model_copy(update={"dtype": "bfloat16"})}
    )
    bundle = Bundle(config)
    assert {weight.dtype for weight in bundle.trained_weights().values()} == {torch.float32}
    assert bundle.dit.model.blocks[0].ffn.net[0].proj.weight.dtype == torch.bfloat16
    result = Trainer(config, ClipStream(), tmp_path / "run").run()
    full = config.model_copy(
        update={"dtype": "float32", "model": config.model.model_copy(update={"dtype": "float32"})}
    )
    expected = Trainer(full, ClipStream(), tmp_path / "full").run()
    assert result.first_loss == pytest.approx(expected.first_loss, rel=0.03)


SHAPE = {"hidden": 48, "heads": 2, "layers": 2}


@pytest.mark.parametrize(
    "model", beyond(1, [MMDiTConfig(**SHAPE), STDiTConfig(**SHAPE), None]), ids=["mmdit", "st_dit", "dit"]
)
def test_models_of_ours_are_adapted_from_a_run_of_theirs(tmp_path, model):
    config = tiny_config(4).model_copy(update={"model": model} if model else {})
    Trainer(config, ClipStream(), tmp_path / "base").run()
    lora = LoraConfig(**LORA, checkpoint=str(tmp_path / "base"))
    config = config.model_copy(update={"lora": lora, "ema": EmaConfig(decay=0.5)})
    Trainer(config, ClipStream(), tmp_path / "run").run()
    trained, started = load_trained(str(tmp_path / "run"), CPU), tensors(tmp_path / "base")
    frozen = {name.replace(".base_layer", ""): weight for name, weight in trained.bundle.named_parameters()}
    assert all(torch.equal(frozen[name], weight) for name, weight in started.items())
    assert trained.bundle.text.table.weight.requires_grad is False
    text = trained.bundle.text(["a wave going 1"])
    x, t = torch.randn(1, 24, 3, 8, 8), torch.rand(1)
    with torch.no_grad():
        expected = trained.bundle.dit(x, t, *text)
    export(trained, tmp_path / "merged", merged=True)
    merged = Bundle(tiny_config().model_copy(update={"model": config.model})).dit
    merged.load_state_dict(load_file(tmp_path / "merged" / "model.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(merged(x, t, *text), expected, rtol=1e-4, atol=1e-5)


def forward_flops(dit):
    torch.manual_seed(1)
    x, context = torch.randn(1, 24, 2, 4, 4), torch.randn(1, 5, 8)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        dit(x, torch.rand(1), context, torch.ones(1, 5, dtype=torch.bool))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "targets", [(), ("to_q", "attn2.to_k", "time_proj", "proj")], ids=["default", "chosen"]
)
def test_a_step_with_adapters_costs_two_forwards_and_three_of_the_adapters(tmp_path, targets):
    config = run_config(tmp_path, "wan", lora=LORA | {"targets": targets})
    adapted, mask = Bundle(config).dit, torch.ones(1, 5, dtype=torch.bool)
    whole = Bundle(config.model_copy(update={"lora": None})).dit
    forward = whole.flops((2, 4, 4), 5).forward
    adapters = forward_flops(adapted) - forward_flops(whole)
    assert adapters > 0
    assert adapted.work([(2, 4, 4)], mask).flops == 2 * forward + 3 * adapters
    assert whole.work([(2, 4, 4)], mask).flops == whole.flops((2, 4, 4), 5).training


@pytest.mark.parametrize("targets", [(), ("modulation", "key", "mlp.0")], ids=["default", "chosen"])
@pytest.mark.parametrize("model", [DiTConfig, STDiTConfig, MMDiTConfig], ids=["dit", "st_dit", "mmdit"])
def test_adapters_of_models_of_ours_are_counted_as_they_run(model, targets):
    whole, adapted = (build_denoiser(model(**SHAPE), channels=24, text_width=8) for _ in range(2))
    adapt(adapted, LoraConfig(**LORA, targets=targets))
    adapters = forward_flops(adapted) - forward_flops(whole)
    assert adapters > 0
    assert adapted.step_flops((2, 4, 4), 5) == 2 * whole.flops((2, 4, 4), 5).forward + 3 * adapters


def test_layers_that_are_not_there_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"lora\.targets=\['query'\]"):
        Bundle(run_config(tmp_path, "wan", lora=LORA | {"targets": ["query"]}))


def test_what_cannot_go_together_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"parallel\.tp"):
        run_config(tmp_path, "wan", lora=LORA, parallel={"tp": 2})


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_checkpointed_blocks_drop_the_same_again(tmp_path, policy):
    """Gradients of adapters, and the numbers that are drawn behind the backward, are those without checkpointing."""

    def gradients(policy: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        lora = LORA | {"dropout": 0.3}
        config = run_config(tmp_path, "wan", lora=lora, parallel={"activation_checkpointing": policy})
        bundle = Bundle(config).train()
        torch.manual_seed(5)
        for weight in bundle.trained_weights().values():
            torch.nn.init.normal_(weight.data, std=0.1)
        parallelize(bundle.dit, Ranks.of(config.parallel, World(0, 1, CPU)), config)
        torch.manual_seed(6)
        bundle.dit(*asked()).square().mean().backward()
        return {name: weight.grad for name, weight in bundle.trained_weights().items()}, torch.rand(3)

    expected, then = gradients("none")
    found, after = gradients(policy)
    assert torch.equal(after, then)
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        assert torch.equal(found[name], gradient), name


def test_runs_with_dropout_learn_the_same_under_checkpointing_and_after_a_resume(tmp_path):
    lora = LORA | {"dropout": 0.3}
    found = []
    for policy, steps in (("none", (4,)), ("full", (3, 4))):
        for total in steps:
            config = run_config(
                tmp_path, "wan", total, lora=lora, parallel={"activation_checkpointing": policy}
            )
            schedule = config.schedule.model_copy(update={"total_steps": total})
            config = config.model_copy(update={"schedule": schedule})
            Trainer(config, ClipStream(), tmp_path / policy).run()
        found.append(losses(tmp_path / policy))
    assert found[0] == found[1]


def test_where_the_frozen_weights_come_from_is_said(tmp_path):
    for wrong in ({"lora": LoraConfig()}, {"lora": {}}):
        with pytest.raises(ValueError, match=r"lora\.checkpoint must name"):
            TrainConfig.model_validate(tiny_config().model_dump() | wrong)
    with pytest.raises(ValueError, match=r"lora\.checkpoint is for models of ours"):
        run_config(tmp_path, "wan", lora=LORA | {"checkpoint": "x"})
    with pytest.raises(UsageError, match="holds no checkpoint"):
        Bundle(tiny_config().model_copy(update={"lora": LoraConfig(checkpoint=str(tmp_path / "nothing"))}))
