"""Functions that `torch.compile` leaves alone."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def uncompiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that breaks a compiled graph, like `torch.compiler.disable`.

    To apply that one imports the compiler, two seconds of a process that may compile nothing.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            broken: Result = torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-untyped-call]
            return broken
        return function(*args, **kwargs)

    return call
