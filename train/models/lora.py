"""LoRA (Hu et al. 2021) through peft: injection, export and merging of adapters.

An adapted layer computes W x + alpha / rank B A x with frozen W and B initialized to zero.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.lora import LoraConfig
from reelweave.train.models.denoiser import Denoiser, InputRows
from reelweave.train.models.published.formats.adapters import read_adapters_file
from reelweave.train.models.published.formats.layers import layers_of
from reelweave.train.models.published.shared import DiffusersDenoiser

_NAME = "default"

Rounding = Callable[[str, torch.Tensor], torch.Tensor]
"""Function from the name of a weight, without its model's prefix, and the weight to the rounded weight."""


def adapt(denoiser: Denoiser, config: LoraConfig) -> None:
    """Add float32 adapters to a denoiser and freeze all other weights.

    Raises:
        UsageError: peft is not installed, or no layer matches.
    """
    peft = _peft()
    targets = config.targets or denoiser.lora_targets
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=list(targets)
    )
    try:
        peft.inject_adapter_in_model(settings, adapted_module(denoiser), adapter_name=_NAME)
    except ValueError as error:
        raise UsageError(
            f"lora.targets={list(targets)} names no layer of this model that can be adapted"
        ) from error
    denoiser.unknown_targets = _unknown(denoiser, config.targets)
    denoiser.adapted = True
    denoiser.adapter_weights = _count_weights(denoiser)
    for name, parameter in denoiser.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if parameter.requires_grad:
            # peft creates adapters in the layer's dtype; trained weights are float32.
            parameter.data = parameter.data.float()


def initial_adapters(denoiser: Denoiser, config: LoraConfig) -> dict[str, torch.Tensor]:
    """Return the adapters that `adapt` draws for a model with weights, on the CPU, by parameter name.

    Args:
        denoiser: model on the meta device, which is adapted here.
        config: configuration of the adapters.
    """
    for module in denoiser.modules():
        for name, weight in module.named_parameters(recurse=False):
            # peft draws adapters on the device of the layer: here on the CPU, for a layer of one value.
            value = torch.empty((), dtype=weight.dtype, device="cpu").expand(weight.shape)
            setattr(module, name, nn.Parameter(value))
    adapt(denoiser, config)
    return {name: weight.detach() for name, weight in denoiser.named_parameters() if ".lora_" in name}


def adapter_weights(denoiser: Denoiser) -> dict[str, torch.Tensor]:
    """Return the adapters, named LAYER.lora_A.weight and LAYER.lora_B.weight as in peft and diffusers."""
    weights: dict[str, torch.Tensor] = _peft().get_peft_model_state_dict(
        adapted_module(denoiser), adapter_name=_NAME
    )
    return weights


def load_adapters(denoiser: Denoiser, weights: dict[str, torch.Tensor]) -> None:
    """Set the adapters to weights named as in `adapter_weights`.

    Raises:
        UsageError: they are not those of this model's adapters.
    """
    check_adapters(denoiser, weights)
    _peft().set_peft_model_state_dict(adapted_module(denoiser), weights, adapter_name=_NAME)


def starting_adapters(denoiser: Denoiser, config: LoraConfig) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the adapters that a run begins with, named as in `adapter_weights`, and lines to say about them.

    Matrices B are multiplied so that they act at ``lora.alpha`` as the file says.

    Args:
        denoiser: model without adapters.
        config: configuration that names their file.

    Raises:
        UsageError: the file holds no adapters of this model, or others than those that are trained.
    """
    path = config.start_from
    assert path is not None
    if not isinstance(denoiser, DiffusersDenoiser):
        raise UsageError("lora.start_from is for published models; lora.checkpoint names weights of ours")
    layers = layers_of(denoiser.model)
    read = read_adapters_file(path, layers, denoiser.native_names, "lora.start_from")
    if read.rank != config.rank:
        raise UsageError(
            f"lora.start_from {path} has adapters of rank {read.rank}, and lora.rank is {config.rank}: set lora.rank to"
            f" {read.rank}"
        )
    targets = config.targets or denoiser.lora_targets
    if layers.selected(targets) != layers.selected(read.targets):
        raise UsageError(
            f"lora.start_from {path} adapts other layers than lora.targets {list(targets)}: set lora.targets to"
            f" {list(read.targets)}"
        )
    lines = [f"lora.start_from: adapters begin as in {path}", *([read.note] if read.note else [])]
    factor = read.alpha / config.alpha
    if factor == 1:
        return read.weights, lines
    lines.append(
        f"lora.start_from {path} says alpha {read.alpha:g}, and lora.alpha is {config.alpha:g}: its matrices B are"
        f" multiplied by {factor:g}, so that they act as there"
    )
    scaled = {
        name: weight * factor if ".lora_B." in name else weight for name, weight in read.weights.items()
    }
    return scaled, lines


def check_adapters(denoiser: Denoiser, weights: dict[str, torch.Tensor]) -> None:
    """Check that adapters are those of a model; errors as in `load_adapters`."""
    expected = adapter_weights(denoiser)
    other = sorted(expected.keys() ^ weights.keys())
    other += sorted(
        name for name in expected.keys() & weights.keys() if expected[name].shape != weights[name].shape
    )
    if other:
        raise UsageError(
            f"the adapters are of another model: {other[0]} is missing or differs in one of both"
        )


def merge(denoiser: Denoiser, round_merged: Rounding | None = None) -> None:
    """Merge every adapter into its layer, and remove it.

    Args:
        denoiser: the adapted model.
        round_merged: makes a weight from its name and its sum in float32; None: the sum has the layer's dtype.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    inner = adapted_module(denoiser)
    for name, layer in list(inner.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            base = layer.get_base_layer()
            if round_merged is not None:
                # Merged in a narrow dtype, the sum would be rounded to it before it is rounded to another.
                base.weight.data = base.weight.data.to(torch.promote_types(base.weight.dtype, torch.float32))
            layer.merge()
            if round_merged is not None:
                base.weight.data = round_merged(f"{name}.weight", base.weight.data)
            parent, _, child = name.rpartition(".")
            setattr(inner.get_submodule(parent), child, base)
    denoiser.adapted = False


def adapted_module(denoiser: Denoiser) -> Any:
    """Return the module that adapters are named after: diffusers' own for a published model."""
    inner: nn.Module = denoiser.model if isinstance(denoiser, DiffusersDenoiser) else denoiser
    return inner


def _unknown(denoiser: Denoiser, targets: Sequence[str]) -> str:
    """Name the targets that are the end of no adapted layer's name, with the nearest names of linear layers."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [
        f".{name}"
        for name, layer in adapted_module(denoiser).named_modules()
        if isinstance(layer, BaseTunerLayer)
    ]
    unknown = [target for target in targets if not any(layer.endswith(f".{target}") for layer in layers)]
    if not unknown:
        return ""
    linear = [
        name for name, layer in adapted_module(denoiser).named_modules() if isinstance(layer, nn.Linear)
    ]
    parts = [name.removesuffix(".base_layer").split(".") for name in linear if ".lora_" not in name]
    ends = sorted({".".join(each[-count:]) for each in parts for count in range(1, len(each) + 1)})
    nearest = [get_close_matches(target, ends, 3, 0.0) for target in unknown]
    said = [f"{target!r} (nearest: {', '.join(near)})" for target, near in zip(unknown, nearest, strict=True)]
    return f"lora.targets: no layer of this model that can be adapted ends in {' or '.join(said)}"


def _count_weights(denoiser: Denoiser) -> dict[InputRows, int]:
    """Count the weights of adapters by the rows that their layers are applied to."""
    counts: dict[InputRows, int] = {}
    for name, parameter in denoiser.named_parameters():
        layer, adapter, _ = name.partition(".lora_")
        if adapter:
            rows = denoiser.layer_rows(layer)
            counts[rows] = counts.get(rows, 0) + parameter.numel()
    return counts


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise UsageError("lora needs peft: pip install 'reelweave[diffusers]'") from error
    return peft
