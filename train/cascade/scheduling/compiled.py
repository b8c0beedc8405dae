"""Inner loops as machine code: numba, compiled at the first call and kept on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """A function of numbers and arrays, compiled."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
