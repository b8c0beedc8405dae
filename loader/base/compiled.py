"""Compilation of inner loops by numba, at the first call, with a cache on disk.

Sums keep the order in which they are written, and products are rounded before they are added, so results are the same
on every processor.
"""

from collections.abc import Callable
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

from reelweave.loader.base.shared.locks import lock_if_possible

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays, in one process at a time.

    Processes of a node begin together: one compiles for some seconds, the others read its result from the cache.
    Where no folder can be written each of them compiles for itself.
    """
    return cast(F, _Compiled(function))


class _Compiled:
    """Function that is compiled at its first call, of itself or of a caller: numba takes half a second to load."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self._dispatcher(*args)

    @property
    def _numba_type_(self) -> Any:
        """Type by which numba knows what a compiled function calls."""
        return self._dispatcher._numba_type_

    @property
    def stats(self) -> Any:
        """Hits and misses of the cache."""
        return self._dispatcher.stats

    @cached_property
    def _dispatcher(self) -> Any:
        import numba
        from numba.core.compiler_lock import global_compiler_lock

        function = self.py_func
        try:
            dispatcher: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
        except RuntimeError:  # neither beside the module nor in the home can a cache be written
            return numba.njit(nogil=True, error_model="numpy")(function)
        compile_now = dispatcher.compile
        name = f"{function.__module__}.{function.__qualname__}.lock"

        def compile_in_turn(signature: Any) -> Any:
            # Numba's own lock first: a thread that compiles a caller holds it when it comes to this function.
            with global_compiler_lock, lock_if_possible(Path(dispatcher.stats.cache_path) / name):
                return compile_now(signature)

        dispatcher.compile = compile_in_turn
        return dispatcher
