"""Initialization of a changed architecture from published weights.

diffusers numbers blocks in execution order. Added compression blocks are the last of an encoder and the first
of a decoder. Later decoder blocks thus have other numbers than before, with the same function.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from reelweave.loader.errors import UsageError

_KEY = "model.architecture"
_FIXED = {
    "AutoencoderKLWan": ("is_residual", "patch_size", "in_channels", "out_channels"),
    "AutoencoderKLCosmos": (
        "encoder_block_out_channels",
        "decode_block_out_channels",
        "patch_size",
        "patch_type",
        "temporal_compression_ratio",
    ),
    "AutoencoderKLCogVideoX": ("block_out_channels", "temporal_compression_ratio"),
    "AutoencoderKLHunyuanVideo": (
        "block_out_channels",
        "spatial_compression_ratio",
        "temporal_compression_ratio",
    ),
}
"""Settings that must equal the published ones, so that blocks of equal names have equal functions."""

VaeSettings = Mapping[str, Any]
Origin = Callable[[str], str | None]
"""Mapping from a weight's name to its published name; None without one."""


@dataclass(frozen=True)
class Initialization:
    """Origins of an architecture's weights, by name.

    Attributes:
        taken: weights loaded from the published VAE.
        new: weights drawn by seed.
        left_over: published weights that are unused.
    """

    taken: tuple[str, ...]
    new: tuple[str, ...]
    left_over: tuple[str, ...]


def check_settings(kind: type[nn.Module], published: VaeSettings, changed: VaeSettings) -> dict[str, Any]:
    """Check changed settings and return them without diffusers' own annotations.

    Args:
        kind: class of the VAE.
        published: settings of the published VAE.
        changed: settings of the architecture; missing ones are as published.

    Raises:
        UsageError: it is of another class, has an unknown key, or changes a fixed setting.
    """
    family = kind.__name__
    if changed.get("_class_name", family) != family:
        raise UsageError(
            f"{_KEY} is a {changed['_class_name']}, and model.name a {family}: they must be of one class"
        )
    parameters = set(inspect.signature(kind.__init__).parameters) - {"self"}
    changes = {name: value for name, value in changed.items() if not name.startswith("_")}
    for name in changes.keys() - parameters - published.keys():
        close = get_close_matches(name, parameters, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{_KEY}: {family} knows no {name}{meant}")
    merged = {name: value for name, value in published.items() if name in parameters} | changes
    for name in _FIXED[family]:
        if _plain(merged.get(name)) != _plain(published.get(name)):
            raise UsageError(
                f"{_KEY} changes {name}, by which blocks of a {family} would no longer do what their published weights"
                f" were trained for; leave it at {_plain(published.get(name))}"
            )
    return merged


def origin(family: str, published: VaeSettings, changed: VaeSettings) -> Origin:
    """Return the published name of each weight of a changed architecture.

    Args:
        family: class of both.
        published: settings of the published VAE.
        changed: settings of the architecture, `check_settings`.

    Raises:
        UsageError: blocks were added elsewhere than at the deep end, or removed.
    """
    return _of_wan(published, changed) if family == "AutoencoderKLWan" else lambda name: name


@torch.no_grad()
def initialise_(model: nn.Module, published: Mapping[str, torch.Tensor], of: Origin) -> Initialization:
    """Copy published weights whose name and shape match; others keep their drawn values."""
    copied, new, used = [], [], set()
    for name, weight in model.state_dict().items():
        source = of(name)
        if source is not None and source in published and published[source].shape == weight.shape:
            weight.copy_(published[source])
            copied.append(name)
            used.add(source)
        else:
            new.append(name)
    return Initialization(tuple(copied), tuple(new), tuple(sorted(published.keys() - used)))


def _of_wan(published: VaeSettings, changed: VaeSettings) -> Origin:
    """Map names for Wan, whose resolution levels may grow at the deep end of ``dim_mult``.

    In Wan 2.1 the encoder's layers are numbered across levels; in Wan 2.2 ``down_blocks`` are levels. A
    decoder's ``up_blocks`` are levels in both, deepest first.
    """
    before, now = len(published["dim_mult"]), len(changed["dim_mult"])
    halvings = changed["temperal_downsample"]
    if len(halvings) != now - 1:
        raise UsageError(
            f"{_KEY}: dim_mult has {now} levels, so temperal_downsample must have {now - 1} values, not {len(halvings)}"
        )
    levels = list(changed["dim_mult"])[:before], list(halvings)[: before - 1]
    if levels != (list(published["dim_mult"]), list(published["temperal_downsample"])):
        raise UsageError(
            f"{_KEY}: added levels must come behind the published ones, dim_mult {list(published['dim_mult'])} and"
            f" temperal_downsample {list(published['temperal_downsample'])}, as the deepest"
        )
    if any(halvings[before - 1 :]):
        raise UsageError(
            f"{_KEY}: added levels cannot halve time, since Wan's encoder takes frames in fours; set the added values"
            " of temperal_downsample to false"
        )
    numbered = not changed["is_residual"]
    layer_indices = {layer: index for index, layer in enumerate(_layers_of_wan(published))}
    layers = _layers_of_wan(changed)

    def published_name(name: str) -> str | None:
        part, _, rest = name.partition("_blocks.")
        index_text, _, inner = rest.partition(".")
        if part == "decoder.up":
            block = int(index_text) - (now - before)
            return f"{part}_blocks.{block}.{inner}" if block >= 0 else None
        if part == "encoder.down" and numbered:
            index = layer_indices.get(layers[int(index_text)])
            return None if index is None else f"{part}_blocks.{index}.{inner}"
        return name

    return published_name


def _layers_of_wan(settings: VaeSettings) -> list[tuple[int, str, int]]:
    """Return level, kind and index in its level for each of Wan 2.1's ``encoder.down_blocks``, in order."""
    layers: list[tuple[int, str, int]] = []
    for level in range(len(settings["dim_mult"])):
        for block in range(settings["num_res_blocks"]):
            layers.append((level, "residual", block))
            if 0.5**level in settings["attn_scales"]:
                layers.append((level, "attention", block))
        if level < len(settings["dim_mult"]) - 1:
            layers.append((level, "resample", 0))
    return layers


def _plain(value: Any) -> Any:
    """Make a value comparable, whether it comes from JSON or from diffusers."""
    return list(value) if isinstance(value, tuple) else value
