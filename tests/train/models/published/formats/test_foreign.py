"""Files that others made: what is read of them, and what is refused in one sentence."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reelweave.loader.errors import UsageError
from reelweave.train.config.lora import LORA_FILE, LoraConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.lora import adapter_weights
from reelweave.train.sampling.trained.base import base_weights
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_published, load_trained
from tests.train.clips import ClipStream
from tests.train.models.published.formats import tools
from tests.train.published import run_config

CPU = torch.device("cpu")
Q = "blocks.0.self_attn.q"


@dataclass
class Foreign:
    """A model with drawn adapters, and the tensors of its native file."""

    trained: object
    native: dict

    def published(self, path, key="lora"):
        return load_published(self.trained.config, CPU, path)


@pytest.fixture(scope="module")
def wan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wan")
    trained = tools.drawn_model(folder, "wan", {})
    return Foreign(trained, tools.read(tools.exported(trained, folder / "lora.safetensors")))


def renamed(weights, *pairs):
    out = {}
    for name, weight in weights.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = weight.clone()
    return out


def without_alpha(weights):
    return {name: weight for name, weight in weights.items() if not name.endswith(".alpha")}


READ = {
    "no prefix": lambda w: renamed(w, ("diffusion_model.", "")),
    "a name of the adapter": lambda w: renamed(
        without_alpha(w), ("_A.", "_A.default."), ("_B.", "_B.default.")
    ),
    "kohya, as Wan-Fun has it": lambda w: {
        name.replace(".lora_A", "/lora_down")
        .replace(".lora_B", "/lora_up")
        .replace(".alpha", "/alpha")
        .replace(".weight", "/weight")
        .replace("diffusion_model.", "lora_unet__")
        .replace(".", "_")
        .replace("/", "."): x
        for name, x in w.items()
    },
    "lora_down and lora_up": lambda w: renamed(w, ("lora_A", "lora_down"), ("lora_B", "lora_up")),
    "another alpha": lambda w: {
        name: weight / 2 if "lora_B" in name else weight * 2 if "alpha" in name else weight
        for name, weight in w.items()
    },
    "an alpha of its own in one layer": lambda w: {
        name: weight / 2
        if name == f"diffusion_model.{Q}.lora_B.weight"
        else weight * 2
        if name == f"diffusion_model.{Q}.alpha"
        else weight
        for name, weight in w.items()
    },
}


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_adapters_of_others_act_as_they_say(wan, tmp_path, change):
    save_file(change(wan.native), tmp_path / "other.safetensors")
    expected = tools.prediction(wan.trained.bundle.dit)
    found = tools.prediction(wan.published(tmp_path / "other.safetensors").bundle.dit)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("alpha", [4, 12])
def test_adapters_of_peft_act_by_the_settings_beside_them(wan, tmp_path, alpha):
    weights = {
        f"base_model.model.{name}": (
            weight * tools.ALPHA / alpha if ".lora_B." in name else weight
        ).contiguous()
        for name, weight in adapter_weights(wan.trained.bundle.dit).items()
    }
    save_file(weights, tmp_path / "adapter_model.safetensors")
    settings = {"r": 4, "lora_alpha": alpha, "target_modules": ["to_q", "to_k", "to_v", "to_out.0"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    expected = tools.prediction(wan.trained.bundle.dit)
    found = tools.prediction(wan.published(tmp_path).bundle.dit)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(UsageError, match=r"adapter_config.json"):
        wan.published(tmp_path)


def test_a_file_without_alpha_is_read_by_convention_and_says_so(wan, tmp_path, caplog):
    save_file(without_alpha(wan.native), tmp_path / "bare.safetensors")
    found = tools.prediction(wan.published(tmp_path / "bare.safetensors").bundle.dit)
    assert "bare.safetensors states no alpha: taken is alpha 4, its rank" in caplog.text
    torch.testing.assert_close(found, tools.prediction(wan.trained.bundle.dit), rtol=1e-4, atol=1e-3)


def test_a_file_of_diffusers_without_settings_is_read_by_convention(wan, tmp_path, caplog):
    export(wan.trained, tmp_path / "lora")
    save_file(load_file(tmp_path / "lora" / LORA_FILE), tmp_path / "bare.safetensors")
    found = tools.prediction(wan.published(tmp_path / "bare.safetensors").bundle.dit)
    assert "bare.safetensors states no alpha" in caplog.text
    torch.testing.assert_close(found, tools.prediction(wan.trained.bundle.dit), rtol=1e-4, atol=1e-3)


def one(name, tensor):
    return lambda w: w | {name: tensor}


WRONG = {
    "DoRA": (one(f"diffusion_model.{Q}.dora_scale", torch.ones(32, 1)), "holds DoRA in 1 of its 49 tensors"),
    "LoKr": (
        lambda w: {
            f"diffusion_model.{Q}.lokr_w1": torch.ones(2, 2),
            f"diffusion_model.{Q}.lokr_w2": torch.ones(16, 16),
        },
        "holds LoKr in 2 of its 2 tensors",
    ),
    "LoHa": (one(f"lora_unet_{Q.replace('.', '_')}.hada_w1_a", torch.ones(2, 2)), "holds LoHa"),
    "differences": (
        one("diffusion_model.blocks.0.norm3.diff", torch.ones(32)),
        "holds differences of whole weights",
    ),
    "a text encoder": (
        one("lora_te_text_model.lora_up.weight", torch.ones(2, 2)),
        "adapters of a text encoder",
    ),
    "another rank": (
        lambda w: (
            w
            | {
                f"diffusion_model.{Q}.lora_A.weight": torch.ones(2, 32),
                f"diffusion_model.{Q}.lora_B.weight": torch.ones(32, 2),
            }
        ),
        r"several ranks, and lora.rank is one number: 2 \(blocks.0.attn1.to_q, 1 in all\), 4 \(",
    ),
    "another width": (
        lambda w: w | {f"diffusion_model.{Q}.lora_A.weight": torch.ones(4, 40)},
        r"matrices of other shapes than the model for 1 layers: blocks.0.self_attn.q \(A \[4, 40\]",
    ),
    "half an adapter": (
        lambda w: {name: x for name, x in w.items() if name != f"diffusion_model.{Q}.lora_B.weight"},
        r"lacks matrices, 1 in all: blocks.0.self_attn.q.lora_B",
    ),
    "alpha of some": (
        lambda w: {name: x for name, x in w.items() if name != f"diffusion_model.{Q}.alpha"},
        "has alpha for some layers and none for blocks.0.attn1.to_q",
    ),
    "alpha zero": (one(f"diffusion_model.{Q}.alpha", torch.tensor(0.0)), "alpha that is no positive number"),
    "twice": (one(f"lora_unet_{Q.replace('.', '_')}.alpha", torch.tensor(4.0)), "has two matrices alpha for"),
    "other layers": (
        lambda w: renamed(w, ("self_attn", "attention"), ("cross_attn", "attention2")),
        r"48 of its 48 tensors are no adapters of layers of Wan in this model: .* and 38 more$",
    ),
    "another family": (
        lambda w: {
            f"lora_unet_double_blocks_{n}_img_attn_qkv.lora_down.weight": torch.ones(4, 32) for n in (0, 1)
        },
        r"holds adapters of HunyuanVideo \(lora_unet_double_blocks_0_.*\), and the model is another",
    ),
    "another family, natively": (
        lambda w: {"diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 32)},
        "holds adapters of Cosmos Predict2",
    ),
    "more blocks": (
        lambda w: w | renamed(w, ("blocks.0", "blocks.39")),
        r"24 of its 72 tensors are no adapters .*blocks.39",
    ),
    "whole weights": (
        lambda w: {"blocks.0.self_attn.q.weight": torch.ones(32, 32)},
        "holds no adapters, but tensors such as blocks.0.self_attn.q.weight; weights of a whole model belong into",
    ),
    "nothing": (lambda w: {}, "holds no tensors"),
    "several alphas": (
        one(f"diffusion_model.{Q}.alpha", torch.ones(4)),
        "several numbers where one alpha belongs: diffusion_model.blocks.0",
    ),
    "whole numbers": (
        lambda w: {name: x.to(torch.int8) if x.dim() > 1 else x for name, x in w.items()},
        "matrices of type int8, and adapters are floating-point: .* and 22 more",
    ),
    "not finite": (
        lambda w: w | {f"diffusion_model.{Q}.lora_A.weight": torch.full((4, 32), math.nan)},
        rf"values that are not finite \(NaN or infinite\): diffusion_model.{Q}.lora_A.weight$",
    ),
    "names of our own": (
        lambda w: {"dit.model.blocks.0.attn1.to_q.lora_A.default.weight": torch.ones(4, 32)},
        r"adapters by our own names, .*: train.start_from begins with them; for --lora export the run as a folder",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_of_adapters_is_answered_in_a_sentence(wan, tmp_path, change, said):
    save_file({name: x.contiguous() for name, x in change(wan.native).items()}, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=said):
        wan.published(tmp_path / "w.safetensors")


def test_what_is_no_safetensors_file_is_refused(wan, tmp_path):
    for name, said in {
        "lora.pt": "is a pickle, which can run code",
        "cut.safetensors": "is no safetensors file",
        "gone.safetensors": "gone.safetensors does not exist; check the path",
    }.items():
        if name != "gone.safetensors":
            (tmp_path / name).write_bytes(b"\x10" * 20)
        with pytest.raises(UsageError, match=said):
            wan.published(tmp_path / name)


def test_a_path_without_adapters_is_told_what_it_is(wan, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "several").mkdir()
    for name in "ab":
        save_file({"x": torch.ones(1)}, tmp_path / "several" / f"{name}.safetensors")
    for path, said in {
        tmp_path / "run": r"is a run of `reelweave train` .*train.start_from=/.*run begins with it",
        tmp_path / "several": r"is a folder without pytorch_lora.*: name one of its files \(a.safe.*, b.safe",
        Path(
            "s3://bucket/x.safetensors"
        ): "s3://bucket/x.safetensors is an address, and a file of this machine",
    }.items():
        with pytest.raises(UsageError, match=said):
            wan.published(path)


WEIGHTS = {
    "whole numbers": (
        lambda w: {name: x.to(torch.int8) for name, x in w.items()},
        r"its weights are whole numbers, as quantized files have them \(.* \(I8\)",
    ),
    "missing": (lambda w: {k: v for k, v in w.items() if k != f"{Q}.bias"}, rf"lacks 1 \({Q}.bias\)"),
    "unknown": (one("blocks.0.extra.weight", torch.ones(1)), r"has unknown 1 \(blocks.0.extra.weight\)"),
    "misshapen": (
        one(f"{Q}.bias", torch.ones(3)),
        rf"has of another shape 1 \({Q}.bias \(\[3\] instead of \[32\]\)\)",
    ),
    "quantized": (one("scaled_fp8", torch.ones(2)), "quantized, with scales beside them"),
    "other names": (
        lambda w: renamed(w, ("blocks", "layers")),
        r"lacks \d+ \(blocks.0.* and \d+ more\), has unknown",
    ),
}


@pytest.mark.parametrize(("change", "said"), WEIGHTS.values(), ids=WEIGHTS)
def test_wrong_weights_are_listed(tmp_path, change, said):
    trained = tools.drawn_model(tmp_path, "wan")
    weights = change(tools.read(tools.exported(trained, tmp_path / "w.safetensors")))
    save_file(weights, tmp_path / "wrong.safetensors")
    model = trained.config.model.model_copy(update={"weights": tmp_path / "wrong.safetensors"})
    with pytest.raises(UsageError, match=said):
        Bundle(trained.config.modules._replace(model=model))


def test_weights_are_read_under_any_prefix_and_from_several_files(tmp_path):
    trained = tools.drawn_model(tmp_path, "wan")
    weights = tools.read(tools.exported(trained, tmp_path / "w.safetensors"))
    names = sorted(weights)
    (tmp_path / "parts").mkdir()
    for number, part in enumerate((names[:9], names[9:])):
        tensors = {f"model.diffusion_model.{name}": weights[name] for name in part}
        save_file(tensors, tmp_path / "parts" / f"{number}.safetensors")
    model = trained.config.model.model_copy(update={"weights": tmp_path / "parts"})
    tools.same_weights(Bundle(trained.config.modules._replace(model=model)).dit, trained.bundle.dit)


@pytest.mark.parametrize("form", ["native", "diffusers"])
def test_a_run_begins_with_adapters_of_others(wan, tmp_path, form, capfd):
    """They act in its first step as in the file, whatever lora.alpha is; a resumed run needs the file no more."""
    file = tmp_path / "lora.safetensors"
    if form == "native":
        save_file(wan.native, file)
    else:
        file = tmp_path / "lora"
        export(wan.trained, file)
    lora = {"rank": 4, "alpha": 2.0, "start_from": str(file)}
    config = run_config(tmp_path, "wan", 3, lora=lora)
    meta = dict(Bundle(config, meta=True).initial_weights())
    bundle = Bundle(config).eval()
    expected = tools.prediction(wan.trained.bundle.dit)
    torch.testing.assert_close(tools.prediction(bundle.dit), expected, rtol=1e-5, atol=1e-4)
    for name, weight in bundle.trained_weights().items():
        assert torch.equal(meta[name.removeprefix("dit.")], weight)
    Trainer(config, ClipStream(), tmp_path / "run").run()
    assert "says alpha 4, and lora.alpha is 2: its matrices B are multiplied by 2" in capfd.readouterr().err
    file.rename(tmp_path / "gone")
    assert load_trained(str(tmp_path / "run"), CPU).config.lora.start_from is None
    longer = run_config(tmp_path, "wan", 4, lora=lora)
    assert Trainer(longer, ClipStream(), tmp_path / "run").run().steps == 4


def test_adapters_begin_on_the_weights_that_they_were_trained_on(wan, tmp_path, caplog):
    """Another base is said, and the other one of two experts refused, as `sample --lora` does."""
    file = tmp_path / "l.safetensors"
    config = run_config(tmp_path, "wan", 1, channels=tools.CHANNELS, lora={"rank": 4, "start_from": file})
    save_file(wan.native, file, {"reelweave_base": '{"name": "theirs", "sha256": "123"}'})
    Trainer(config, ClipStream(), tmp_path / "run").run()
    assert "its adapters were trained on theirs (sha256 123); the base weights are" in caplog.text
    caplog.clear()
    save_file(wan.native, file)
    Trainer(config, ClipStream(), tmp_path / "silent").run()
    assert "were trained on" not in caplog.text
    save_file(wan.native, file, {"reelweave_subfolder": "transformer_2"})
    with pytest.raises(
        UsageError, match=r"trained on transformer_2, and are given for transformer: set model"
    ):
        Trainer(config, ClipStream(), tmp_path / "other").run()


def test_a_start_that_is_not_what_is_trained_is_refused(wan, tmp_path):
    save_file(wan.native, tmp_path / "lora.safetensors")
    start = {"start_from": str(tmp_path / "lora.safetensors")}
    for lora, said in (
        ({"rank": 8}, "adapters of rank 4, and lora.rank is 8: set lora.rank to 4"),
        ({"rank": 4, "targets": ["to_q"]}, r"set lora.targets to \['to_k', 'to_out.0', 'to_q', 'to_v'\]"),
    ):
        with pytest.raises(UsageError, match=said):
            Bundle(run_config(tmp_path, "wan", lora=start | lora))


def test_one_key_alone_names_adapters_to_begin_with(tmp_path):
    start = {"rank": 4, "start_from": "lora.safetensors"}
    with pytest.raises(ValueError, match=r"start_from and lora\.start_from both name adapters"):
        run_config(tmp_path, "wan", lora=start, start_from="runs/first")
    with pytest.raises(ValueError, match=r"lora\.start_from is for published models"):
        TrainConfig(lora=start | {"checkpoint": "runs/first"})


def test_weights_of_a_file_fetch_no_others(wan, tmp_path, monkeypatch):
    """Of a model on the hub, only what describes it."""
    import huggingface_hub

    asked, folder = [], wan.trained.config.model.name
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda _, allow_patterns: asked.extend(allow_patterns) or folder
    )
    plain = tools.drawn_model(tmp_path / "plain", "wan")
    tools.exported(plain, tmp_path / "w.safetensors")
    model = plain.config.model.model_copy(
        update={"name": "on/the-hub", "weights": tmp_path / "w.safetensors"}
    )
    modules = plain.config.modules._replace(model=model)
    tools.same_weights(Bundle(modules).dit, plain.bundle.dit)
    assert base_weights(modules._replace(lora=LoraConfig())).name.endswith("w.safetensors")
    assert "transformer/*.json" in asked
    assert not any("safetensors" in pattern for pattern in asked)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_adapters_are_widened(wan, tmp_path, dtype):
    narrow = {name: weight.to(dtype) if ".lora" in name else weight for name, weight in wan.native.items()}
    save_file(narrow, tmp_path / "narrow.safetensors")
    back = adapter_weights(wan.published(tmp_path / "narrow.safetensors").bundle.dit)
    name = "blocks.0.attn1.to_q.lora_A.weight"
    assert torch.equal(back[name], narrow[f"diffusion_model.{Q}.lora_A.weight"].float())
