"""Scale of adapters that others trained: settings of PEFT beside rank and alpha that change what adapters do."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

_REFUSED = (
    "use_dora",
    "rank_pattern",
    "modules_to_save",
    "lora_bias",
    "fan_in_fan_out",
    "layer_replication",
    "use_qalora",
)
"""Settings under which adapters are more than a product of two matrices, or of several ranks."""


def refused_setting(settings: Mapping[str, Any]) -> str | None:
    """Return the name of a setting that adapters here have none of; None if there is none."""
    return next((name for name in _REFUSED if settings.get(name)), None)


def rescale_adapters(
    weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return adapters that act at alpha / rank as the given ones act by their own settings.

    PEFT multiplies a layer's B A by its alpha over its rank, or over the root of its rank with ``use_rslora``
    (Kalajdzievski 2023); ``alpha_pattern`` gives some layers an alpha of their own.

    Args:
        weights: adapters, named LAYER.lora_A.weight and LAYER.lora_B.weight.
        settings: settings of PEFT's LoraConfig.

    Raises:
        KeyError, TypeError, ValueError, re.error: a setting is missing or no number.
    """
    rank, alpha = float(settings["r"]), float(settings["lora_alpha"])
    patterns: Mapping[str, float] = settings.get("alpha_pattern") or {}
    over = math.sqrt(rank) if settings.get("use_rslora") else rank
    scaled = dict(weights)
    for name in weights:
        layer, is_b, _ = name.partition(".lora_B")
        layer_alpha = next(
            (
                pattern_alpha
                for key, pattern_alpha in patterns.items()
                if re.fullmatch(rf"(.*\.)?({key})", layer)
            ),
            alpha,
        )
        factor = (layer_alpha / over) / (alpha / rank)
        if is_b and factor != 1:
            scaled[name] = weights[name] * factor
    return scaled
