"""Gated residual, norm and modulation: the operator and its reference; csrc/gate_residual_norm_modulate.cu."""

from reelweave.train.kernels.gate_norm_modulate.operator import (
    bytes_moved,
    gate_residual_norm_modulate,
    saved_bytes,
)

__all__ = [
    "bytes_moved",
    "gate_residual_norm_modulate",
    "saved_bytes",
]
