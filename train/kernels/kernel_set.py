"""Operators of one provider, and the references of all operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

REFERENCES: dict[str, Callable[..., Any]] = {}
"""Forward and backward of each imported operator in plain PyTorch, by name (`reelweave.train.kernels.providers`)."""


@dataclass(frozen=True)
class Kernels:
    """Operators of one provider, and the tensors that it supports; attributes of their names, too.

    Attributes:
        serves: returns True for supported tokens and numerics.
        operators: by name, with the signatures of `REFERENCES`; each returns None where it has no kernel.
        checks: True if operators check their arguments, once for each layout.
    """

    serves: Callable[[torch.Tensor, str], bool]
    operators: Mapping[str, Callable[..., Any]]
    checks: bool = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "operators" or name not in self.operators:
            raise AttributeError(name)
        return self.operators[name]

    def replace(self, **operators: Callable[..., Any]) -> "Kernels":
        """Return these operators with some replaced."""
        return replace(self, operators={**self.operators, **operators})
