"""Layers and vectors that published pipelines keep in float32, kept so in training under autocast.

diffusers lists them in ``_keep_in_fp32_modules``: Wan's embedding of the time, its tables of shifts and scales, and its
norms. A model trained with their rounding to bfloat16 would not meet it when others sample from it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from diffusers.models.embeddings import TimestepEmbedding
from torch import nn


class Float32TimestepEmbedding(TimestepEmbedding):  # type: ignore[misc]
    """Embedding of the time whose linear layers run in their weights' type, whatever autocast says."""

    def forward(self, sample: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Map sinusoids of the time, [..., K], to its embedding."""
        device = sample.device.type
        # The meta device knows no autocast.
        with nullcontext() if sample.is_meta else torch.autocast(device, enabled=False):
            embedded: torch.Tensor = super().forward(sample, *rest)
            return embedded


def keep_float32(model: nn.Module) -> list[nn.Module]:
    """Make the layers that diffusers keeps in float32 run in it, in place; return them.

    Norms among them need nothing, since theirs cast to float32 themselves; for their weights see `vectors_in_float32`.

    Args:
        model: transformer of diffusers.
    """
    names = _names(model)
    float32_modules = [
        module
        for path, module in model.named_modules()
        if path.split(".")[-1] in names and type(module) in (TimestepEmbedding, Float32TimestepEmbedding)
    ]
    for module in float32_modules:
        module.__class__ = Float32TimestepEmbedding
    return float32_modules


def vectors_in_float32(model: nn.Module, layers: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that diffusers keeps in float32 in other layers: tables and vectors.

    Args:
        model: transformer of diffusers.
        layers: layers that `keep_float32` has returned.
    """
    names, inside = _names(model), {id(weight) for layer in layers for weight in layer.parameters()}
    return [
        weight
        for path, weight in model.named_parameters()
        if names & set(path.split(".")) and "lora_" not in path and id(weight) not in inside
    ]


def _names(model: nn.Module) -> set[str]:
    """Return the names that diffusers keeps in float32; an adapted model's are those of its base."""
    return set(getattr(model, "_keep_in_fp32_modules", None) or ())
