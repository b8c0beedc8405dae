"""Other tools' readers, as their public key maps have them, and tiny models to read."""

import copy
import inspect
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from reelweave.loader.storage import open_object
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.trained.load import Trained
from reelweave.train.sampling.trained.native import export_native
from tests.train.published import run_config

CHANNELS, RANK, ALPHA = 24, 4, 6.0


def drawn_model(folder, variant, lora=None, **update) -> Trained:
    """A model of a pipeline's folder with drawn weights: all of them, or its adapters at a scale of 1.5."""
    folder.mkdir(exist_ok=True)
    adapters = None if lora is None else {"rank": RANK, "alpha": ALPHA} | lora
    config = run_config(folder, variant, channels=CHANNELS, lora=adapters, **update)
    bundle = Bundle(config).eval().requires_grad_(False)
    torch.manual_seed(2)
    for name, weight in bundle.dit.named_parameters():
        if lora is None or ".lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    return Trained("drawn", config, bundle, 1, "model")


def exported(trained: Trained, path: Path, form="native", merged=False, dtype=None) -> Path:
    """The file of `reelweave export --format`."""
    target, name = open_object(str(path))
    export_native(trained, form, target, name, merged, dtype)
    return path


@torch.no_grad()
def prediction(dit) -> torch.Tensor:
    """What a model of ours answers."""
    torch.manual_seed(1)
    x_BCTHW, t_B, context_BMD = torch.randn(1, CHANNELS, 2, 4, 4), torch.rand(1), torch.randn(1, 5, 8)
    return dit(x_BCTHW, t_B, context_BMD, torch.ones(1, 5, dtype=torch.bool))


def same_weights(found, expected) -> None:
    """Two models of ours have the same weights, to the bit."""
    state = expected.model.state_dict()
    assert found.model.state_dict().keys() == state.keys()
    for name, weight in found.model.state_dict().items():
        assert torch.equal(weight, state[name]), name


def prediction_of(trained: Trained, model) -> torch.Tensor:
    """What ours answers with the weights of a model of diffusers."""
    plain = trained.config.model_copy(update={"lora": None})
    dit = Bundle(plain).eval().dit
    dit.model.load_state_dict(model if isinstance(model, dict) else model.state_dict())
    return prediction(dit)


def whole_by_diffusers(source: str, weights: dict, folder: Path):
    """A model that diffusers makes of native weights."""
    import diffusers

    kind = getattr(diffusers, source)
    model = kind.from_config(kind.load_config(folder / "transformer"))
    width = model.config.num_attention_heads * model.config.attention_head_dim
    model.load_state_dict(_converter(source, width)(dict(weights)), strict=True)
    return model.eval()


def _converter(source: str, width: int):
    from diffusers.loaders import single_file_utils as theirs

    if source == "WanTransformer3DModel":
        return theirs.convert_wan_transformer_to_diffusers
    if source == "CosmosTransformer3DModel":
        # It asks which version it has after it has emptied what it asks (0.42.1), and takes all for Predict2.
        name = "convert_cosmos_transformer_checkpoint_to_diffusers"
        return changed(
            theirs, name, 'to_q.0.weight" in checkpoint:', 'to_q.0.weight" in converted_state_dict:'
        )
    if source == "CogVideoXTransformer3DModel":
        return _from_sat
    return narrow(theirs, "convert_hunyuan_video_transformer_to_diffusers", width)


def narrow(module, name: str, width: int):
    """A function of diffusers for HunyuanVideo, whose width it states, with the width of a tiny model."""
    return changed(module, name, "hidden_size = 3072", f"hidden_size = {width}")


def changed(module, name: str, old: str, new: str):
    """A function of a module, one of its lines changed."""
    code = inspect.getsource(getattr(module, name))
    assert old in code
    space = dict(vars(module))
    exec(code.replace(old, new), space)
    return space[name]


def _from_sat(weights: dict) -> dict:
    """Weights of CogVideoX by diffusers' names, as its scripts/convert_cogvideox_to_diffusers.py makes them."""
    parts = (
        (r"^model\.diffusion_model\.", ""),
        (r"^transformer\.final_layernorm", "norm_final"),
        (r"^transformer\.layers\.", "transformer_blocks."),
        (r"\.attention\.dense", ".attn1.to_out.0"),
        (r"\.attention\.", ".attn1."),
        (r"\.mlp\.dense_h_to_4h", ".ff.net.0.proj"),
        (r"\.mlp\.dense_4h_to_h", ".ff.net.2"),
        (r"\.input_layernorm", ".norm1.norm"),
        (r"\.post_attention_layernorm", ".norm2.norm"),
        (r"^time_embed\.0", "time_embedding.linear_1"),
        (r"^time_embed\.2", "time_embedding.linear_2"),
        (r"^mixins\.patch_embed", "patch_embed"),
        (r"^mixins\.final_layer\.norm_final", "norm_out.norm"),
        (r"^mixins\.final_layer\.linear", "proj_out"),
        (r"^mixins\.final_layer\.adaLN_modulation\.1", "norm_out.linear"),
        (r"^mixins\.adaln_layer\.(query|key)_layernorm_list\.(\d+)", r"transformer_blocks.\2.attn1.norm_\1"),
        (r"norm_query", "norm_q"),
        (r"norm_key", "norm_k"),
    )
    out = {}
    for name, weight in weights.items():
        for pattern, new in parts:
            name = re.sub(pattern, new, name)
        if "query_key_value" in name:
            for part, rows in zip("qkv", weight.chunk(3), strict=True):
                out[name.replace("query_key_value", f"to_{part}")] = rows
        elif match := re.fullmatch(r"mixins\.adaln_layer\.adaLN_modulations\.(\d+)\.1\.(\w+)", name):
            chunks = weight.chunk(12)
            for norm, first in ((1, 0), (2, 3)):
                rows = torch.cat((*chunks[first : first + 3], *chunks[first + 6 : first + 9]))
                out[f"transformer_blocks.{match[1]}.norm{norm}.linear.{match[2]}"] = rows
        else:
            out[name] = weight
    return out


def applied_as_comfyui(native: dict, adapters: dict, prefix: str = "") -> dict:
    """Native weights with adapters as ComfyUI applies them (comfy/lora.py, comfy/weight_adapter/lora.py).

    Its key map has, for a weight X.weight of the model, diffusion_model.X and lora_unet_ with X by underscores. An
    adapter acts at alpha over its rank, or at 1 where it has no alpha. The prefix of a file of the whole model goes.
    """
    weights, loaded = copy.deepcopy(native), set()
    for name in native:
        if not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight").removeprefix(prefix)
        for base in (f"diffusion_model.{layer}", f"lora_unet_{layer.replace('.', '_')}"):
            for up, down in (("lora_up", "lora_down"), ("lora_B", "lora_A")):
                if (mat1 := adapters.get(f"{base}.{up}.weight")) is None:
                    continue
                mat2 = adapters[f"{base}.{down}.weight"]
                loaded |= {f"{base}.{up}.weight", f"{base}.{down}.weight", f"{base}.alpha"}
                alpha = adapters.get(f"{base}.alpha")
                scale = 1.0 if alpha is None else alpha.item() / mat2.shape[0]
                change = scale * mat1.flatten(1) @ mat2.flatten(1)
                weights[name] += change.reshape(weights[name].shape).to(weights[name].dtype)
    assert adapters.keys() <= loaded, f"lora key not loaded: {sorted(adapters.keys() - loaded)[:3]}"
    return weights


def read(path: Path) -> dict:
    """The tensors of a file."""
    return load_file(path)


def repackaged(name: str) -> str:
    """ComfyUI's own name of a tensor of HunyuanVideo (diffusion-pipe, models/hunyuan_video.py)."""
    chain = (
        ("txt_in.t_embedder.mlp.0.", "txt_in.t_embedder.in_layer."),
        ("txt_in.t_embedder.mlp.2.", "txt_in.t_embedder.out_layer."),
        ("txt_in.c_embedder.linear_1.", "txt_in.c_embedder.in_layer."),
        ("txt_in.c_embedder.linear_2.", "txt_in.c_embedder.out_layer."),
        ("_mod.linear.", "_mod.lin."),
        ("_attn_qkv.", "_attn.qkv."),
        ("mlp.fc1.", "mlp.0."),
        ("mlp.fc2.", "mlp.2."),
        ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
        ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
        (".q_norm.weight", ".norm.query_norm.scale"),
        (".k_norm.weight", ".norm.key_norm.scale"),
        ("_attn_proj.", "_attn.proj."),
        (".modulation.linear.", ".modulation.lin."),
        ("_in.mlp.2.", "_in.out_layer."),
        ("_in.mlp.0.", "_in.in_layer."),
    )
    for old, new in chain:
        name = name.replace(old, new)
    return name
