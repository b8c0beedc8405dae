"""Reference operators as a provider, for checks and benchmarks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reelweave.train.kernels.gate_norm_modulate import reference as gate_norm_modulate
from reelweave.train.kernels.kernel_set import OPERATORS, Kernels
from reelweave.train.kernels.norm_modulate import reference as norm_modulate
from reelweave.train.kernels.qk_norm import reference as qk_norm

EAGER = Kernels(
    serves=lambda _x, _numerics: True,
    norm_modulate=norm_modulate.forward,
    norm_modulate_backward=norm_modulate.backward,
    gate_norm_modulate=gate_norm_modulate.forward,
    gate_norm_modulate_backward=gate_norm_modulate.backward,
    qk_norm=qk_norm.forward,
    qk_norm_backward=qk_norm.backward,
)
"""Serves all tensors."""


def with_references(kernels: Kernels) -> Kernels:
    """Return these operators with the reference in place of a missing kernel, as models see them."""

    def whole(operator: str) -> Callable[..., Any]:
        kernel, reference = getattr(kernels, operator), getattr(EAGER, operator)

        def run(*arguments: Any) -> Any:
            outputs = kernel(*arguments)
            return reference(*arguments) if outputs is None else outputs

        return run

    operators: dict[str, Any] = {operator: whole(operator) for operator in OPERATORS}
    return replace(kernels, **operators)
