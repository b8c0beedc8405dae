"""Layers that published pipelines keep in float32, kept so in training under autocast.

diffusers lists them in ``_keep_in_fp32_modules``: Wan's embedding of the time, whose rounding to bfloat16 a model
trained so would not meet when others sample from it.
"""

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

    Norms among them need nothing, since theirs cast to float32 themselves.

    Args:
        model: transformer of diffusers.
    """
    names = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    kept = [
        module
        for path, module in model.named_modules()
        if path.split(".")[-1] in names and type(module) in (TimestepEmbedding, Float32TimestepEmbedding)
    ]
    for module in kept:
        module.__class__ = Float32TimestepEmbedding
    return kept
