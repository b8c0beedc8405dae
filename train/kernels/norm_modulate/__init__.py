"""Norm and modulation: the operator and its reference; the kernel is csrc/layer_norm_modulate.cu."""

from reelweave.train.kernels.norm_modulate.operator import bytes_moved, layer_norm_modulate, saved_bytes

__all__ = [
    "bytes_moved",
    "layer_norm_modulate",
    "saved_bytes",
]
