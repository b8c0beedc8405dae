"""Other tools' readers, as their public key maps have them, and tiny models to read."""

import copy
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


def prediction_of(trained: Trained, model) -> torch.Tensor:
    """What ours answers with the weights of a model of diffusers."""
    plain = trained.config.model_copy(update={"lora": None})
    dit = Bundle(plain).eval().dit
    dit.model.load_state_dict(model if isinstance(model, dict) else model.state_dict())
    return prediction(dit)


def whole_by_diffusers(source: str, weights: dict, folder: Path):
    """A model that diffusers makes of native weights."""
    import diffusers
    from diffusers.loaders import single_file_utils as theirs

    kind = getattr(diffusers, source)
    convert = {"WanTransformer3DModel": theirs.convert_wan_transformer_to_diffusers}[source]
    model = kind.from_config(kind.load_config(folder / "transformer"))
    model.load_state_dict(convert(dict(weights)), strict=True)
    return model.eval()


def applied_as_comfyui(native: dict, adapters: dict) -> dict:
    """Native weights with adapters as ComfyUI applies them (comfy/lora.py, comfy/weight_adapter/lora.py).

    Its key map has, for a weight X.weight of the model, diffusion_model.X and lora_unet_ with X by underscores. An
    adapter acts at alpha over its rank, or at 1 where it has no alpha.
    """
    weights, loaded = copy.deepcopy(native), set()
    for name in native:
        if not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight")
        for base in (f"diffusion_model.{layer}", f"lora_unet_{layer.replace('.', '_')}"):
            for up, down in (("lora_up", "lora_down"), ("lora_B", "lora_A")):
                if (mat1 := adapters.get(f"{base}.{up}.weight")) is None:
                    continue
                mat2 = adapters[f"{base}.{down}.weight"]
                loaded |= {f"{base}.{up}.weight", f"{base}.{down}.weight", f"{base}.alpha"}
                alpha = adapters.get(f"{base}.alpha")
                scale = 1.0 if alpha is None else alpha.item() / mat2.shape[0]
                weights[name] += (scale * mat1 @ mat2).to(weights[name].dtype)
    assert adapters.keys() <= loaded, f"lora key not loaded: {sorted(adapters.keys() - loaded)[:3]}"
    return weights


def read(path: Path) -> dict:
    """The tensors of a file."""
    return load_file(path)
