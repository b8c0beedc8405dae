"""Native names: what an export holds for other tools, and what comes back in."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_object
from reelweave.train.config.lora import LORA_FILE
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.lora import adapter_weights
from reelweave.train.models.published.names.hunyuan import HUNYUAN_NAMES
from reelweave.train.models.published.names.wan import WAN_NAMES
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_published
from reelweave.train.sampling.trained.native import export_native
from tests.thorough import nightly, thorough
from tests.train.models.published.formats import tools

CPU = torch.device("cpu")
WHOLE = [
    "wan",
    *(
        pytest.param(variant, marks=nightly if variant in ("cogvideox 1.5", "cosmos 2") else thorough)
        for variant in ("hunyuan, distilled", "cogvideox", "cogvideox 1.5", "cosmos", "cosmos 2")
    ),
]
ADAPTED = [
    "wan",
    *(pytest.param(variant, marks=thorough) for variant in ("hunyuan", "cosmos")),
    pytest.param("cosmos 2", marks=nightly),
]
ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
EVERYWHERE = {
    "wan": [*ATTENTION, "net.0.proj", "net.2", "proj_out", "time_proj", "linear_1", "patch_embedding"],
    "hunyuan": [
        "to_q",
        "add_v_proj",
        "to_add_out",
        "net.2",
        "proj_mlp",
        "proj_out",
        "linear",
        "linear_1",
        "proj_in",
    ],
    "cosmos": [*ATTENTION, "net.0.proj", "net.2", "linear_1", "linear_2", "proj_out", "patch_embed.proj"],
}
"""Layers of all kinds, beside those of attention."""


@pytest.fixture(scope="module", params=WHOLE)
def whole(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, tools.drawn_model(folder, request.param)


@pytest.fixture(scope="module", params=ADAPTED)
def adapted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    return folder, request.param, tools.drawn_model(folder, request.param, {})


def test_a_whole_model_is_found_by_diffusers_reader_of_the_original(whole, tmp_path):
    folder, trained = whole
    weights = tools.read(tools.exported(trained, tmp_path / "w.safetensors"))
    model = tools.whole_by_diffusers(trained.bundle.dit.source, weights, folder)
    state = trained.bundle.dit.model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())


def test_native_weights_come_in_as_they_went_out(whole, tmp_path):
    _, trained = whole
    tools.exported(trained, tmp_path / "w.safetensors")
    config = trained.config.model.model_copy(update={"weights": tmp_path / "w.safetensors"})
    modules = trained.config.modules._replace(model=config)
    tools.same_weights(Bundle(modules).dit, trained.bundle.dit)
    state = trained.bundle.dit.model.state_dict()
    by_part = dict(Bundle(modules, meta=True).initial_weights())  # as the shards of ranks
    assert all(torch.equal(by_part[f"model.{name}"], weight) for name, weight in state.items())


@pytest.mark.parametrize("form", ["native", "kohya"])
@pytest.mark.parametrize("targets", ["attention", "everywhere"])
def test_adapters_act_in_comfyui_as_here(adapted, tmp_path, form, targets):
    _, variant, trained = adapted
    if targets == "everywhere":
        trained = tools.drawn_model(tmp_path / "model", variant, {"targets": EVERYWHERE[variant.split()[0]]})
    plain = tools.drawn_model(tmp_path / "plain", variant)
    base = trained.bundle.dit.model
    plain.bundle.dit.model.load_state_dict(
        {name.replace(".base_layer", ""): w for name, w in base.state_dict().items() if ".lora_" not in name}
    )
    native = tools.read(tools.exported(plain, tmp_path / "base.safetensors"))
    adapters = tools.read(tools.exported(trained, tmp_path / "lora.safetensors", form))
    prefix = "net." if variant.startswith("cosmos") else ""
    merged = tools.applied_as_comfyui(native, adapters, prefix)
    model = tools.whole_by_diffusers(trained.bundle.dit.source, merged, tmp_path / "plain")
    found, expected = tools.prediction_of(trained, model), tools.prediction(trained.bundle.dit)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert (tools.prediction(plain.bundle.dit) - expected).abs().max() > 1e-2 * expected.abs().max()


@pytest.mark.parametrize("form", ["native", "kohya", "diffusers"])
def test_adapters_come_back_to_the_bit(adapted, tmp_path, form, caplog):
    _, _, trained = adapted
    if form == "diffusers":
        export(trained, tmp_path / "out")
        file = tmp_path / "out"
    else:
        file = tools.exported(trained, tmp_path / "lora.safetensors", form)
    back = load_published(trained.config, CPU, file)
    assert "alpha" not in caplog.text
    scale = tools.ALPHA / tools.RANK
    for name, weight in adapter_weights(trained.bundle.dit).items():
        expected = weight * scale if ".lora_B." in name else weight
        assert torch.equal(adapter_weights(back.bundle.dit)[name], expected), name
    if form != "diffusers":
        again = tools.exported(back, tmp_path / "again.safetensors", form)
        assert all(torch.equal(w, tools.read(file)[name]) for name, w in tools.read(again).items())


def test_a_merged_model_is_native_too(adapted, tmp_path):
    _, variant, _ = adapted
    trained = tools.drawn_model(tmp_path / "model", variant, {})
    expected = tools.prediction(trained.bundle.dit)
    weights = tools.read(tools.exported(trained, tmp_path / "w.safetensors", merged=True))
    model = tools.whole_by_diffusers(trained.bundle.dit.source, weights, tmp_path / "model")
    found = tools.prediction_of(trained, model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_diffusers_loads_native_adapters_of_wan(diffusers, tmp_path):
    """Those of attention and MLP; its reader of kohya's files wants all layers of each block."""
    targets = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2"]
    trained = tools.drawn_model(tmp_path / "model", "wan", {"targets": targets})
    expected = tools.prediction(trained.bundle.dit)
    for form in ("native", "kohya"):
        file = tools.exported(trained, tmp_path / f"{form}.safetensors", form)
        model = diffusers.WanTransformer3DModel.from_pretrained(tmp_path / "model" / "transformer")
        pipe = diffusers.WanPipeline(None, None, None, None, transformer=model)
        pipe.load_lora_weights(file)
        pipe.fuse_lora(components=["transformer"])
        pipe.unload_lora_weights()
        found = tools.prediction_of(trained, model)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@thorough
def test_diffusers_loads_native_adapters_of_hunyuanvideo(diffusers, tmp_path, monkeypatch):
    """Those of its blocks: of the text's refiner, diffusers cuts A as it cuts B."""
    from diffusers.loaders import lora_conversion_utils, lora_pipeline

    name = "_convert_hunyuan_video_lora_to_diffusers"
    monkeypatch.setattr(lora_pipeline, name, tools.narrow(lora_conversion_utils, name, 32))
    blocks = ("transformer_blocks", "single_transformer_blocks")
    queries = [f"{block}.0.attn.to_{part}" for block in blocks for part in "qkv"]
    targets = [
        *queries,
        "transformer_blocks.0.attn.to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
    ]
    trained = tools.drawn_model(tmp_path / "model", "hunyuan", {"targets": targets})
    expected = tools.prediction(trained.bundle.dit)
    file = tools.exported(trained, tmp_path / "native.safetensors")
    model = diffusers.HunyuanVideoTransformer3DModel.from_pretrained(tmp_path / "model" / "transformer")
    weights, metadata = diffusers.HunyuanVideoPipeline.lora_state_dict(file, return_lora_metadata=True)
    diffusers.HunyuanVideoPipeline.load_lora_into_transformer(weights, model, metadata=metadata)
    model.fuse_lora()
    model.unload_lora()
    found = tools.prediction_of(trained, model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@thorough
@pytest.mark.parametrize("variant", ["wan", "hunyuan", "cogvideox", "cosmos", "cosmos 2"])
def test_diffusers_loads_its_format_of_every_family(diffusers, tmp_path, variant):
    trained = tools.drawn_model(tmp_path / "model", variant, {})
    expected = tools.prediction(trained.bundle.dit)
    export(trained, tmp_path / "lora")
    model = type(trained.bundle.dit.model).from_pretrained(tmp_path / "model" / "transformer")
    # What the pipelines call; those of Cosmos 1 and 2 read no adapters.
    model.load_lora_adapter(tmp_path / "lora", weight_name=LORA_FILE, use_safetensors=True)
    model.fuse_lora()
    model.unload_lora()
    found = tools.prediction_of(trained, model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@thorough
def test_comfyuis_own_names_of_hunyuanvideo_come_in(tmp_path):
    """Whole models, and adapters that were trained on those names."""
    trained = tools.drawn_model(tmp_path, "hunyuan, distilled")
    weights = tools.read(tools.exported(trained, tmp_path / "w.safetensors"))
    renamed = {f"model.model.{tools.repackaged(name)}": weight for name, weight in weights.items()}
    save_file(renamed, tmp_path / "comfyui.safetensors")
    model = trained.config.model.model_copy(update={"weights": tmp_path / "comfyui.safetensors"})
    tools.same_weights(Bundle(trained.config.modules._replace(model=model)).dit, trained.bundle.dit)
    targets = {"targets": ["to_q", "net.2", "linear", "proj_mlp"]}
    adapted = tools.drawn_model(tmp_path / "adapted", "hunyuan", targets)
    adapters = tools.read(tools.exported(adapted, tmp_path / "lora.safetensors"))
    renamed = {tools.repackaged(name): weight for name, weight in adapters.items()}
    assert any(".img_attn.qkv.lora_A" in name for name in renamed)
    save_file(renamed, tmp_path / "lora.safetensors")
    expected = tools.prediction(adapted.bundle.dit)
    found = tools.prediction(load_published(adapted.config, CPU, tmp_path / "lora.safetensors").bundle.dit)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@thorough
def test_adapters_of_cogvideox_are_refused_natively(tmp_path):
    trained = tools.drawn_model(tmp_path / "model", "cogvideox", {})
    for form in ("native", "kohya"):
        with pytest.raises(
            UsageError, match=f"--format {form}: CogVideoX's original repository keeps adapters within"
        ):
            tools.exported(trained, tmp_path / "lora.safetensors", form)


@thorough
def test_a_fused_adapter_of_others_is_shared_by_its_layers(tmp_path):
    """Trained on one layer of query, key and value: A is the same for all, and B is cut."""
    trained = tools.drawn_model(tmp_path / "model", "hunyuan", {})
    torch.manual_seed(3)
    A, B = torch.randn(2, 32), torch.randn(96, 2)
    weights = {"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": A}
    weights |= {"lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight": B}
    weights |= {"lora_unet_double_blocks_0_img_attn_qkv.alpha": torch.tensor(1.0)}
    save_file(weights, tmp_path / "fused.safetensors")
    back = load_published(trained.config, CPU, tmp_path / "fused.safetensors")
    found = adapter_weights(back.bundle.dit)
    assert back.config.lora.rank == 2
    assert back.config.lora.alpha == 1
    assert sorted({name.split(".lora_")[0] for name in found}) == [
        f"transformer_blocks.0.attn.to_{part}" for part in "kqv"
    ]
    for part, rows in zip("qkv", B.chunk(3), strict=True):
        assert torch.equal(found[f"transformer_blocks.0.attn.to_{part}.lora_A.weight"], A)
        assert torch.equal(found[f"transformer_blocks.0.attn.to_{part}.lora_B.weight"], rows)


def test_an_export_twice_is_the_same_bytes_and_says_its_scale(adapted, tmp_path):
    _, _, trained = adapted
    for form in ("native", "kohya"):
        first = tools.exported(trained, tmp_path / f"1{form}.safetensors", form)
        second = tools.exported(trained, tmp_path / f"2{form}.safetensors", form)
        assert first.read_bytes() == second.read_bytes()
    with safe_open(tmp_path / "1kohya.safetensors", "pt") as file:
        assert file.metadata()["reelweave_rank"] == str(tools.RANK)
    weights = tools.read(tmp_path / "1kohya.safetensors")
    for name, weight in weights.items():
        if name.endswith(".alpha"):
            assert weight.item() == len(weights[name.replace(".alpha", ".lora_down.weight")])


def test_what_readers_leave_out_is_said(adapted, tmp_path):
    _, variant, trained = adapted
    target, name = open_object(str(tmp_path / "w.safetensors"))
    note = export_native(trained, "kohya", target, name).note
    if variant == "wan":
        assert note == ""
    elif variant == "hunyuan":
        assert note.startswith(
            "musubi-tuner adapts blocks alone, and leaves 2 of 7 out without a word: txt_in."
        )
    else:
        assert "musubi-tuner does not know Cosmos" in note
    assert export_native(trained, "native", target, name).note == ""


def test_layers_without_a_native_name_are_named():
    assert [held.native for held in WAN_NAMES.find(["blocks.7.attn1.to_q", "extra"])] == [
        "blocks.7.self_attn.q"
    ]
    with pytest.raises(UsageError, match="the original repository of Wan has no name for extra, more"):
        WAN_NAMES.hold(["blocks.7.attn1.to_q", "extra", "more"])
    with pytest.raises(UsageError, match=r"no name for transformer_blocks\.0\.attn\.to_q"):
        HUNYUAN_NAMES.hold(["transformer_blocks.0.attn.to_q"])  # and not what it is fused with


def test_a_model_without_native_names_is_refused_in_words(adapted, whole, tmp_path):
    _, trained = whole
    with pytest.raises(UsageError, match="--format kohya has names for adapters alone"):
        tools.exported(trained, tmp_path / "w.safetensors", "kohya")
    with pytest.raises(UsageError, match="has no adapters to merge"):
        tools.exported(trained, tmp_path / "w.safetensors", merged=True)
