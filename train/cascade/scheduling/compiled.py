"""Compilation of inner loops by numba, at the first call, with a cache on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
