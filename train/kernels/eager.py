"""Reference operators as a provider."""

from train.kernels.kernel_set import Kernels
from train.kernels.reference import gate_norm_modulate, norm_modulate, qk_norm

EAGER = Kernels(
    serves=lambda _x, _numerics: True,
    norm_modulate=norm_modulate.forward,
    norm_modulate_backward=norm_modulate.backward,
    gate_norm_modulate=gate_norm_modulate.forward,
    gate_norm_modulate_backward=gate_norm_modulate.backward,
    qk_norm=qk_norm.forward,
    qk_norm_backward=qk_norm.backward,
)
"""Serves all tensors; other providers replace some of its operators (`dataclasses.replace`)."""
