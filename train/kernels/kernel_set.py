"""Operators of one provider."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True)
class Kernels:
    """Operators of one provider, and the tensors that it supports; each returns None where it has no kernel.

    Attributes:
        serves: returns True for supported tokens and numerics.
        norm_modulate: signature of `reelweave.train.kernels.norm_modulate.reference.forward`.
        norm_modulate_backward: signature of `reelweave.train.kernels.norm_modulate.reference.backward`.
        gate_norm_modulate: signature of `reelweave.train.kernels.gate_norm_modulate.reference.forward`.
        gate_norm_modulate_backward: signature of `reelweave.train.kernels.gate_norm_modulate.reference.backward`.
        qk_norm: signature of `reelweave.train.kernels.qk_norm.reference.forward`.
        qk_norm_backward: signature of `reelweave.train.kernels.qk_norm.reference.backward`.
        checks: True if operators check their arguments, once for each layout.
    """

    serves: Callable[[torch.Tensor, str], bool]
    norm_modulate: Callable[..., Any]
    norm_modulate_backward: Callable[..., Any]
    gate_norm_modulate: Callable[..., Any]
    gate_norm_modulate_backward: Callable[..., Any]
    qk_norm: Callable[..., Any]
    qk_norm_backward: Callable[..., Any]
    checks: bool = False


OPERATORS = tuple(field.name for field in fields(Kernels) if field.name not in ("serves", "checks"))
"""Names of the operators in `Kernels`."""
