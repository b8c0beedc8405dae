"""Export of a checkpoint by native names: one safetensors file of adapters or of a whole transformer."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.files import file_of_tensors
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.models.lora import adapter_weights, merge
from reelweave.train.models.published.formats.adapters import LORA_RANK
from reelweave.train.models.published.formats.fused import join_adapters
from reelweave.train.models.published.formats.layers import layers_of
from reelweave.train.models.published.formats.whole import native_weights
from reelweave.train.models.published.names.native import NativeNames, listed
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.sampling.trained.export import file_metadata, round_weight, rounding, scale_adapter
from reelweave.train.sampling.trained.load import Trained

NativeFormat = Literal["native", "kohya"]


class NativeExport(NamedTuple):
    """Contents of a file by native names.

    Attributes:
        tensors: number of tensors.
        parameters: number of elements in all tensors.
        merged: adapters are in the weights.
        note: what a reader of the format leaves out; empty: nothing.
    """

    tensors: int
    parameters: int
    merged: bool
    note: str


def export_native(
    trained: Trained,
    form: NativeFormat,
    target: Storage,
    path: str,
    merged: bool = False,
    dtype: str | None = None,
) -> NativeExport:
    """Write adapters, or the whole transformer, by the names of its original repository; the same bytes each time.

    Args:
        trained: model of a checkpoint; with ``merged``, loses its adapters.
        form: names of the original repository, or kohya's of its layers, which are for adapters alone.
        target: storage to write to.
        path: path of the file there.
        merged: merge adapters into their layers and write the whole model.
        dtype: dtype that floating-point weights are rounded to at last; None: keep theirs.

    Raises:
        UsageError: the model has no native names, the format cannot hold it, or there are no adapters to merge.
    """
    check_native(trained.checkpoint, trained.config.modules, form, merged)
    (dit, names), lora, note = _named_model(trained), trained.config.lora, ""
    if merged or lora is None:
        rounded = rounding(trained.bundle, dtype)
        if lora is not None:
            merge(dit, rounded if dtype else None)
        state: Mapping[str, torch.Tensor] = dit.model.state_dict()
        held = native_weights(names, state)

        def join(name: str, device: str) -> torch.Tensor:
            sources = [rounded(source, state[source].detach().to(device)) for source in held[name].sources]
            return held[name].join(sources).contiguous()

        # One tensor is joined and rounded at a time.
        tensors = {name: join(name, "meta") for name in held}
        size, content = file_of_tensors(tensors, {}, lambda name: join(name, "cpu"))
    else:
        tensors, note = _adapters(dit, lora, names, form, dtype)
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
        size, content = file_of_tensors(tensors, file_metadata(trained) | {LORA_RANK: str(lora.rank)})
    target.write_chunks(path, content, size)
    return NativeExport(len(tensors), sum(tensor.numel() for tensor in tensors.values()), merged, note)


def check_native(checkpoint: str, modules: ModulesConfig, form: NativeFormat, merged: bool) -> None:
    """Check that a run can be written by native names, as far as its configuration tells.

    Args:
        checkpoint: URI of its checkpoint.
        modules: modules of the run.
        form: format of the file.
        merged: adapters are merged into their layers.

    Raises:
        UsageError: it is a model of ours, there are no adapters to merge, or kohya's names are asked of a whole model.
    """
    if not isinstance(modules.model, DiffusersConfig):
        raise UsageError(
            f"{checkpoint} is a model of ours, which no original repository has names for: leave --format out"
        )
    if merged and modules.lora is None:
        raise UsageError(f"{checkpoint} has no adapters to merge; export it as it is")
    if form == "kohya" and (merged or modules.lora is None):
        raise UsageError(
            f"--format kohya has names for adapters alone, and {checkpoint} is exported whole: take --format native"
        )


def _named_model(trained: Trained) -> tuple[DiffusersDenoiser, NativeNames]:
    """Return a published model and its native names.

    Raises:
        UsageError: it has none.
    """
    dit = trained.bundle.dit
    assert isinstance(dit, DiffusersDenoiser), "see `check_native`"
    if dit.native_names is None:
        raise UsageError(
            f"{dit.source} has no native names here: leave --format out, for the names of diffusers"
        )
    return dit, dit.native_names


def _adapters(
    dit: DiffusersDenoiser, config: LoraConfig, names: NativeNames, form: NativeFormat, dtype: str | None
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of adapters, and a line about what a reader leaves out."""
    if names.no_adapters:
        raise UsageError(f"--format {form}: {names.no_adapters}")
    pairs = _pairs(
        {name: scale_adapter(name, weight, config) for name, weight in adapter_weights(dit).items()}
    )
    sizes = layers_of(dit.model).sizes
    held = [layer for layer in names.find(sizes) if pairs.keys() & set(layer.sources)]
    if lacking := pairs.keys() - {source for layer in held for source in layer.sources}:
        raise UsageError(
            f"--format {form}: the original repository of {names.family} has no layers for the adapters of"
            f" {listed(lacking)}; take --format diffusers"
        )
    found: dict[str, torch.Tensor] = {}
    for layer in held:
        A_RI, B_OR = join_adapters(layer, pairs, [sizes[source][0] for source in layer.sources])
        alpha = torch.tensor(float(len(A_RI)))  # the scale is in B
        if form == "kohya":
            base, sides = f"lora_unet_{layer.native.replace('.', '_')}", ("lora_down", "lora_up")
        else:
            base, sides = f"diffusion_model.{layer.native}", ("lora_A", "lora_B")
        for side, matrix in zip(sides, (A_RI, B_OR), strict=True):
            name = f"{base}.{side}.weight"
            found[name] = round_weight(name, matrix, dtype)
        if form == "kohya" or names.alpha:
            found[f"{base}.alpha"] = alpha
    return found, _musubi_note(names, [layer.native for layer in held]) if form == "kohya" else ""


def _musubi_note(names: NativeNames, layers: Sequence[str]) -> str:
    """Return the line that says which adapters musubi-tuner leaves out; empty: none."""
    if not names.musubi:
        return f"musubi-tuner does not know {names.family}; ComfyUI reads this file"
    if left := [layer for layer in layers if not re.match(names.musubi, layer)]:
        return (
            f"musubi-tuner adapts blocks alone, and leaves {len(left):,} of {len(layers):,} out"
            f" without a word: {listed(left)}"
        )
    return ""


def _pairs(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return matrices A and B by layer."""
    ends = (".lora_A.weight", ".lora_B.weight")
    layers = [name.removesuffix(ends[0]) for name in weights if name.endswith(ends[0])]
    return {layer: (weights[layer + ends[0]], weights[layer + ends[1]]) for layer in layers}
