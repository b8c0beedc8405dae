"""The operators of one provider."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Kernels:
    """The operators of one provider, and which tensors they take.

    Attributes:
        serves: of the tokens and the numerics mode.
        norm_modulate: as `train.kernels.reference.norm_modulate.forward`.
        norm_modulate_backward: as `train.kernels.reference.norm_modulate.backward`.
        gate_norm_modulate: as `train.kernels.reference.gate_norm_modulate.forward`.
        gate_norm_modulate_backward: as `train.kernels.reference.gate_norm_modulate.backward`.
        qk_norm: as `train.kernels.reference.qk_norm.forward`.
        qk_norm_backward: as `train.kernels.reference.qk_norm.backward`.
    """

    serves: Callable[[torch.Tensor, str], bool]
    norm_modulate: Callable[..., Any]
    norm_modulate_backward: Callable[..., Any]
    gate_norm_modulate: Callable[..., Any]
    gate_norm_modulate_backward: Callable[..., Any]
    qk_norm: Callable[..., Any]
    qk_norm_backward: Callable[..., Any]
