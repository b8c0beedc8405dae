"""Fused operators of norm, modulation and gate with gradients (docs/kernels.md), and the launch of csrc/."""
