"""Norm and rotation of queries and keys: the operator and its reference; the kernel is csrc/qk_norm.cu."""

from reelweave.train.kernels.qk_norm.operator import bytes_moved, qk_norm, saved_bytes

__all__ = [
    "bytes_moved",
    "qk_norm",
    "saved_bytes",
]
