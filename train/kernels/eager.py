"""Reference operators as a provider, for checks and benchmarks."""

from collections.abc import Callable
from typing import Any

from reelweave.train.kernels.kernel_set import REFERENCES, Kernels

EAGER = Kernels(lambda _x, _numerics: True, REFERENCES)
"""Serves all tensors."""


def with_references(kernels: Kernels) -> Kernels:
    """Return these operators with the reference in place of a missing kernel, as models see them."""

    def whole(operator: str) -> Callable[..., Any]:
        kernel, reference = kernels.operators[operator], REFERENCES[operator]

        def run(*arguments: Any) -> Any:
            outputs = kernel(*arguments)
            return reference(*arguments) if outputs is None else outputs

        return run

    # A host has operators, too, whose module nobody has imported: no model calls them.
    imported = [operator for operator in kernels.operators if operator in REFERENCES]
    return kernels.replace(**{operator: whole(operator) for operator in imported})
