"""Export of a checkpoint: a diffusers folder, a LoRA file, or plain safetensors.

OUT/config.json, diffusion_pytorch_model*.safetensors   a published model, trained or with its adapters merged
OUT/pytorch_lora_weights.safetensors                    adapters alone, as `load_lora_weights` reads them
OUT/config.json, model.safetensors                      a model of ours
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.export import round_tensor
from reelweave.train.checkpoint.files import write_tensors
from reelweave.train.checkpoint.new_folder import check_new, new_folder
from reelweave.train.config.lora import LORA_FILE, LoraConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.lora import Rounding, adapter_weights, merge
from reelweave.train.models.published.experts import ALL_TIMES
from reelweave.train.models.published.formats.adapters import LORA_PREFIX, LORA_SETTINGS
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.sampling.trained.load import Trained
from reelweave.train.sampling.trained.origin import LORA_BASE, LORA_PART


def export(trained: Trained, out: Path, merged: bool = False, dtype: str | None = None) -> None:
    """Write the weights into a new folder, atomically.

    Args:
        trained: model of a checkpoint; with ``merged``, loses its adapters.
        out: new folder.
        merged: merge adapters into their layers and write the whole model.
        dtype: dtype that floating-point weights are rounded to at last, such as ``bfloat16``; None: keep theirs.

    Raises:
        UsageError: the folder exists or cannot be written, or there are no adapters to merge.
    """
    bundle, lora = trained.bundle, trained.config.lora
    check_new(out)
    if merged and lora is None:
        raise UsageError(f"{trained.checkpoint} has no adapters to merge; export it as it is")
    with new_folder(out) as aside:
        if lora and not merged:
            _adapters(trained, lora, aside / LORA_FILE, dtype)
        else:
            if lora:
                merge(bundle.dit, rounding(bundle, dtype) if dtype else None)
            _whole(bundle, trained, aside, dtype)


def _adapters(trained: Trained, config: LoraConfig, path: Path, dtype: str | None) -> None:
    bundle, model = trained.bundle, trained.config.model
    weights = {
        f"{LORA_PREFIX}.{name}": round_weight(name, scale_adapter(name, weight, config).detach(), dtype)
        .contiguous()
        .cpu()
        for name, weight in adapter_weights(bundle.dit).items()
    }
    settings = {
        "r": config.rank,
        "lora_alpha": config.rank,  # the scale is in the weights
        "target_modules": list(config.targets or bundle.dit.lora_targets),
        "base_model_name_or_path": model.name if isinstance(model, DiffusersConfig) else config.checkpoint,
    }
    described = json.dumps(
        {f"{LORA_PREFIX}.{name}": value for name, value in settings.items()}, sort_keys=True
    )
    write_tensors(path, weights, {LORA_SETTINGS: described} | file_metadata(trained))


def file_metadata(trained: Trained) -> dict[str, str]:
    """Return what a file of adapters says of the weights that they are for, in any format."""
    model, metadata = trained.config.model, {}
    if isinstance(model, DiffusersConfig) and trained.bundle.dit.times != ALL_TIMES:
        metadata[LORA_PART] = model.subfolder
    if trained.base is not None:
        metadata[LORA_BASE] = trained.base.model_dump_json()
    return metadata


def scale_adapter(name: str, weight: torch.Tensor, config: LoraConfig) -> torch.Tensor:
    """Return an adapter's matrix, B times alpha / rank: not every reader knows alpha from the metadata."""
    return weight * (config.alpha / config.rank) if ".lora_B." in name else weight


def round_weight(name: str, weight: torch.Tensor, dtype: str | None) -> torch.Tensor:
    """Return a weight in a dtype; None keeps its own.

    Raises:
        UsageError: it has values that the dtype cannot hold.
    """
    return (
        round_tensor(name, weight, getattr(torch, dtype)) if dtype and weight.is_floating_point() else weight
    )


def rounding(bundle: Bundle, dtype: str | None) -> Rounding:
    """Return the function that rounds a weight of the whole model by its name."""
    wide: set[str] = set()
    if isinstance(bundle.dit, DiffusersDenoiser):
        # diffusers loads these in float32, whatever it is asked for
        wide = set(bundle.dit.model._keep_in_fp32_modules or ())
    return lambda name, weight: weight if wide & set(name.split(".")) else round_weight(name, weight, dtype)


def _whole(bundle: Bundle, trained: Trained, folder: Path, dtype: str | None) -> None:
    rounded_by_name = rounding(bundle, dtype)
    if isinstance(bundle.dit, DiffusersDenoiser):
        model = bundle.dit.model
        for name, weight in model.named_parameters():
            weight.data = rounded_by_name(name, weight.data)
        model.save_pretrained(folder, safe_serialization=True)
        return
    weights: dict[str, torch.Tensor] = bundle.dit.state_dict()
    rounded = {name: rounded_by_name(name, weight).contiguous() for name, weight in weights.items()}
    save_file(rounded, folder / "model.safetensors")
    (folder / "config.json").write_text(trained.config.model.model_dump_json(indent=1), encoding="utf-8")
