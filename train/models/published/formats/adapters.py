"""LoRA files of other tools: by the names of diffusers, PEFT, original repositories, ComfyUI and kohya.

LAYER.lora_A.weight, LAYER.lora_B.weight, LAYER.alpha                 diffusers, PEFT, ComfyUI, DiffSynth
lora_unet_LAYER.lora_down.weight, .lora_up.weight, .alpha             kohya, musubi-tuner; LAYER with _ for dots
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.lora import LORA_FILE, PEFT_FILE, PEFT_SETTINGS, adapters_file
from reelweave.train.models.published.folder import read_json
from reelweave.train.models.published.formats.fused import separate_adapters
from reelweave.train.models.published.formats.layers import Layers
from reelweave.train.models.published.formats.peft_scale import refused_setting, rescale_adapters
from reelweave.train.models.published.formats.whole import absent, check_no_pickle
from reelweave.train.models.published.names.families import NAMES
from reelweave.train.models.published.names.native import Held, NativeNames, listed

LORA_PREFIX = "transformer"
"""Prefix of adapter names in files of diffusers, as it has it for all transformers of a pipeline."""
LORA_SETTINGS = "lora_adapter_metadata"
"""Metadata of files of diffusers: settings of PEFT, JSON."""
LORA_RANK = "reelweave_rank"
"""Metadata of our native files, whose alpha is the rank: the rank before adapters of several layers became one."""

_TENSOR = re.compile(r"(.+)\.(?:lora_?(A|B|down|up)(?:\.[^.]+)?\.weight|(alpha))")
_PREFIXES = (
    "base_model.model.",
    f"{LORA_PREFIX}.",
    "diffusion_model.",
    "model.diffusion_model.",
    "pipe.dit.",
)
_OURS = "dit.model."
_MOST_FILES = 4096
_KOHYA = ("lora_unet__", "lora_unet_", "lora_transformer_")
_FOREIGN = {
    r"dora_scale|magnitude_vector": "DoRA",
    r"\.lokr_": "LoKr",
    r"\.hada_": "LoHa",
    r"\.oft_": "OFT",
    r"\.lora_mid|\.lora_?[AB]?.*\.bias$": "adapters with more than two matrices",
    r"\.diff(_b)?$|\.set_weight$|\.(w|b)_norm$": "differences of whole weights",
    r"^(lora_te|text_encoder)": "adapters of a text encoder",
}
_CHOOSING = ("exclude_modules", "layers_to_transform", "layers_pattern", "target_parameters")
"""Settings of PEFT that choose among the layers of ``target_modules``."""
_SIDES = {"A": "A", "down": "A", "B": "B", "up": "B"}


class AdaptersFile(NamedTuple):
    """Adapters of a file, by the names of diffusers.

    Attributes:
        rank: rank of each.
        alpha: they act at alpha / rank.
        targets: ends of the names of their layers, and of no others.
        weights: matrices, named LAYER.lora_A.weight and LAYER.lora_B.weight.
        metadata: metadata of the file.
        note: what the file leaves open and convention decides; empty: nothing.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    weights: dict[str, torch.Tensor]
    metadata: Mapping[str, str]
    note: str


class _Adapter(NamedTuple):
    A_RI: torch.Tensor
    B_OR: torch.Tensor
    alpha: float | None


def read_adapters_file(path: Path, layers: Layers, names: NativeNames | None, key: str) -> AdaptersFile:
    """Read the adapters of a model from a file of any tool.

    Args:
        path: file, or its folder.
        layers: linear layers of the model.
        names: native names of its family; None: those of diffusers alone are known.
        key: option or configuration key, for errors.

    Raises:
        UsageError: the file holds something else, or adapters of other layers; the message names what was found.
    """
    file = adapters_file(path)
    check_no_pickle(file, key)
    _check_there(path, file, key)
    key = f"{key} {file}"
    try:
        tensors, metadata, settings = _read_file(file)
        return _adapters(tensors, metadata, settings, layers, names, key)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{key} is no safetensors file: {first_line(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, RuntimeError, re.error) as error:
        raise UsageError(f"{key} does not say rank and alpha of its adapters: {first_line(error)}") from error


def _check_there(path: Path, file: Path, key: str) -> None:
    """Refuse a path that names no file of adapters, and say what it names."""
    if file.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{key} {absent(path)}")
    if (path / "checkpoints").is_dir() or (path / "state.json").is_file():
        raise UsageError(
            f"{key} {path} is a run of `reelweave train` or its checkpoint: train.start_from={path} begins with it, and"
            f" `reelweave sample --checkpoint {shlex.quote(str(path))}` samples it"
        )
    inside = listed(each.name for each in islice(path.glob("*.safetensors"), _MOST_FILES))
    raise UsageError(
        f"{key} {path} is a folder without {LORA_FILE} or {PEFT_FILE}"
        + (f": name one of its files ({inside})" if inside else ", or any other safetensors file")
    )


def _read_file(file: Path) -> tuple[dict[str, torch.Tensor], Mapping[str, str], dict[str, Any]]:
    """Return tensors, metadata and settings of PEFT, from the metadata or from the file beside it."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        metadata = opened.metadata() or {}
    if file.name == PEFT_FILE:
        return tensors, metadata, read_json(file.parent / PEFT_SETTINGS, f"{file}")
    saved = json.loads(metadata.get(LORA_SETTINGS, "{}"))
    return tensors, metadata, {name.removeprefix(f"{LORA_PREFIX}."): value for name, value in saved.items()}


def _adapters(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    settings: Mapping[str, Any],
    layers: Layers,
    names: NativeNames | None,
    key: str,
) -> AdaptersFile:
    if (name := refused_setting(settings)) is not None:
        raise UsageError(f"{key} has {name}={settings[name]!r}, which adapters here have not: merge it first")
    _check_values(tensors, key)
    stored = _pairs(tensors, _held_layers(layers, names), key, names)
    separate = _separate(stored, layers, int(metadata.get(LORA_RANK, 0)), key)
    rank = _common_rank(separate, key)
    weights = {
        f"{layer}.lora_{side}.weight": matrix
        for layer, adapter in separate.items()
        for side, matrix in (("A", adapter.A_RI), ("B", adapter.B_OR))
    }
    # Their scale: stated by tensors or by settings, else by convention.
    alphas = {layer: adapter.alpha for layer, adapter in separate.items() if adapter.alpha is not None}
    alpha, note = float(rank), ""
    if settings:
        if alphas:
            raise UsageError(
                f"{key} states alpha twice, in its tensors and in settings of PEFT: remove one of them"
            )
        if int(settings["r"]) != rank:
            raise UsageError(f"{key} says rank {settings['r']}, and its matrices have rank {rank}")
        alpha, weights = float(settings["lora_alpha"]), rescale_adapters(weights, settings)
    elif alphas:
        if lacking := separate.keys() - alphas.keys():
            raise UsageError(f"{key} has alpha for some layers and none for {listed(lacking)}")
        if wrong := [layer for layer, each in alphas.items() if not (math.isfinite(each) and each > 0)]:
            raise UsageError(f"{key} has an alpha that is no positive number: {listed(wrong)}")
        alpha = next(iter(alphas.values()))
        for layer, other in alphas.items():
            if other != alpha:
                weights[f"{layer}.lora_B.weight"] = weights[f"{layer}.lora_B.weight"] * (other / alpha)
    elif LORA_RANK not in metadata:
        note = f"{key} states no alpha: taken is alpha {rank}, its rank, as diffusers, ComfyUI and musubi-tuner do"
    targets = _targets(set(separate), layers, settings, key)
    return AdaptersFile(rank, alpha, targets, weights, metadata, note)


def _check_values(tensors: Mapping[str, torch.Tensor], key: str) -> None:
    """Refuse matrices that are no floating-point numbers, or not finite: every step and video would fail by them."""
    matrices = {name: tensor for name, tensor in tensors.items() if _TENSOR.fullmatch(name)}
    if wrong := [
        name for name, tensor in matrices.items() if tensor.dim() > 1 and not tensor.is_floating_point()
    ]:
        kinds = listed({str(matrices[name].dtype).removeprefix("torch.") for name in wrong})
        raise UsageError(
            f"{key} has matrices of type {kinds}, and adapters are floating-point: {listed(wrong)}"
        )
    if several := [
        name for name, tensor in matrices.items() if name.endswith(".alpha") and tensor.numel() != 1
    ]:
        raise UsageError(f"{key} has several numbers where one alpha belongs: {listed(several)}")
    if wrong := [
        name
        for name, tensor in matrices.items()
        if not name.endswith(".alpha") and not tensor.float().isfinite().all()
    ]:
        raise UsageError(f"{key} has values that are not finite (NaN or infinite): {listed(wrong)}")


def _held_layers(layers: Layers, names: NativeNames | None) -> dict[str, Held]:
    """Return what each name of a layer means, in diffusers, natively and in kohya's form of both."""
    held = [Held(name, (name,), ((0, 0),)) for name in layers.sizes]
    if names is not None:
        native = names.find(layers.sizes)
        held = [*names.repackage(native, ".weight"), *native, *held]
    known = {each.native: each for each in held}
    return {name.replace(".", "_"): each for name, each in known.items()} | known


def _pairs(
    tensors: Mapping[str, torch.Tensor], held: Mapping[str, Held], key: str, names: NativeNames | None
) -> dict[Held, _Adapter]:
    """Return the matrices and alphas of a file by what their layer holds."""
    found: dict[Held, dict[str, torch.Tensor]] = {}
    unknown = []
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        layer = held.get(_layer(match[1])) if match else None
        if match is None or layer is None:
            unknown.append(name)
            continue
        side = "alpha" if match[3] else _SIDES[match[2]]
        if side in found.setdefault(layer, {}):
            raise UsageError(f"{key} has two matrices {side} for {layer.native}: keep one")
        # Types of one byte are for storing, and few operations know them.
        found[layer][side] = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    if unknown or not found:
        raise _unknown_names(unknown, len(tensors), key, names)
    lacking = [
        f"{layer.native}.lora_{side}" for layer, sides in found.items() for side in "AB" if side not in sides
    ]
    if lacking:
        raise UsageError(f"{key} lacks matrices, {len(lacking):,} in all: {listed(lacking)}")
    return {
        layer: _Adapter(sides["A"], sides["B"], float(sides["alpha"]) if "alpha" in sides else None)
        for layer, sides in found.items()
    }


def _layer(name: str) -> str:
    """Return the name of a layer without what tools put before it."""
    for prefix in (*_KOHYA, *_PREFIXES):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _unknown_names(unknown: list[str], total: int, key: str, names: NativeNames | None) -> UsageError:
    """Return the error for names that are no adapters of a model's layers."""
    if not total:
        return UsageError(f"{key} holds no tensors")
    for pattern, kind in _FOREIGN.items():
        if named := [name for name in unknown if re.search(pattern, name)]:
            return UsageError(
                f"{key} holds {kind} in {len(named):,} of its {total:,} tensors ({listed(named)}): LoRA alone is read,"
                " a product of two matrices per layer; merge it into the weights where it was trained"
            )
    if not any(_TENSOR.fullmatch(name) for name in unknown) and len(unknown) == total:
        return UsageError(
            f"{key} holds no adapters, but tensors such as {listed(unknown)}; weights of a whole model belong into"
            " model.weights"
        )
    if all(name.startswith(_OURS) for name in unknown):
        return UsageError(
            f"{key} holds adapters by our own names, as `reelweave export` writes them without --format:"
            " train.start_from begins with them; for --lora export the run as a folder, or with --format native"
        )
    mine = f" of {names.family}" if names else ""
    for other in NAMES:
        if other is not names and other.known(map(_layer, unknown)) > len(unknown) / 2:
            return UsageError(
                f"{key} holds adapters of {other.family} ({listed(unknown)}), and the model is another"
            )
    return UsageError(
        f"{key}: {len(unknown):,} of its {total:,} tensors are no adapters of layers{mine} in this model:"
        f" {listed(unknown)}"
    )


def _separate(stored: Mapping[Held, _Adapter], layers: Layers, rank: int, key: str) -> dict[str, _Adapter]:
    """Return adapters by layer of diffusers; `rank`: that before adapters became one; 0: unknown."""
    wrong = [
        f"{layer.native} (A {list(adapter.A_RI.shape)}, B {list(adapter.B_OR.shape)}, for a layer of"
        f" {list(_size(layer, layers))})"
        for layer, adapter in stored.items()
        if not _fits(adapter, _size(layer, layers))
    ]
    if wrong:
        raise UsageError(
            f"{key} has matrices of other shapes than the model for {len(wrong):,} layers: {listed(wrong)}"
        )
    rank = rank or min(len(adapter.A_RI) for adapter in stored.values())
    found: dict[str, _Adapter] = {}
    for layer, (A_RI, B_OR, alpha) in stored.items():
        rows = [layers.sizes[source][0] for source in layer.sources]
        for source, (A, B) in separate_adapters(layer, A_RI, B_OR, rows, rank).items():
            if source in found:
                raise UsageError(f"{key} adapts {source} twice, by two of its names: keep one")
            scale = None if alpha is None else alpha * len(A) / len(A_RI)
            found[source] = _Adapter(A, B, scale)
    return found


def _size(layer: Held, layers: Layers) -> tuple[int, int]:
    return sum(layers.sizes[source][0] for source in layer.sources), layers.sizes[layer.sources[0]][1]


def _fits(adapter: _Adapter, size: tuple[int, int]) -> bool:
    A_RI, B_OR, _ = adapter  # of a convolution with the sizes of its kernel behind
    outputs, inputs = size
    if (
        A_RI.dim() < 2
        or A_RI.dim() != B_OR.dim()
        or not (A_RI.is_floating_point() and B_OR.is_floating_point())
    ):
        return False
    return A_RI.shape[1] == inputs and B_OR.shape[:2] == (outputs, len(A_RI)) and len(A_RI) > 0


def _common_rank(adapters: Mapping[str, _Adapter], key: str) -> int:
    by_rank: dict[int, list[str]] = {}
    for layer, adapter in adapters.items():
        by_rank.setdefault(len(adapter.A_RI), []).append(layer)
    if len(by_rank) > 1:
        parts = ", ".join(
            f"{rank} ({layers[0]}, {len(layers):,} in all)" for rank, layers in sorted(by_rank.items())
        )
        raise UsageError(f"{key} has adapters of several ranks, and lora.rank is one number: {parts}")
    return next(iter(by_rank))


def _targets(adapted: set[str], layers: Layers, settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the file's own targets if it states a list of them, or new ones."""
    stated = settings.get("target_modules")
    if not isinstance(stated, list) or any(settings.get(name) for name in _CHOOSING):
        return layers.targets(adapted)
    targets = tuple(map(str, stated))
    chosen = layers.selected(targets)
    if lacking := chosen - adapted:
        raise UsageError(f"{key} lacks adapters of layers that its target_modules name: {listed(lacking)}")
    return targets if chosen == adapted else layers.targets(adapted)
