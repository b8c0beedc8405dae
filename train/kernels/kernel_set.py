"""Operators of one provider."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Kernels:
    """Operators of one provider, and the tensors that it supports.

    Attributes:
        serves: returns True for supported tokens and numerics.
        norm_modulate: signature of `train.kernels.reference.norm_modulate.forward`.
        norm_modulate_backward: signature of `train.kernels.reference.norm_modulate.backward`.
        gate_norm_modulate: signature of `train.kernels.reference.gate_norm_modulate.forward`.
        gate_norm_modulate_backward: signature of `train.kernels.reference.gate_norm_modulate.backward`.
        qk_norm: signature of `train.kernels.reference.qk_norm.forward`.
        qk_norm_backward: signature of `train.kernels.reference.qk_norm.backward`.
    """

    serves: Callable[[torch.Tensor, str], bool]
    norm_modulate: Callable[..., Any]
    norm_modulate_backward: Callable[..., Any]
    gate_norm_modulate: Callable[..., Any]
    gate_norm_modulate_backward: Callable[..., Any]
    qk_norm: Callable[..., Any]
    qk_norm_backward: Callable[..., Any]
