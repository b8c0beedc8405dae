"""Processor seconds by operation: what of a long function's time each of the functions inside it takes."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

REST = "rest"
"""Operation of what no other one is charged with."""


class OperationTimes:
    """Processor seconds of this process by operation, each without those of operations inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = [REST]
        self._since = time.process_time()

    def begin(self, operation: str) -> None:
        """Charge what follows to an operation."""
        self._charge()
        self._open.append(operation)

    def end(self) -> None:
        """Charge what follows to the operation outside."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = time.process_time()
        operation = self._open[-1]
        self.seconds[operation] = self.seconds.get(operation, 0.0) + now - self._since
        self._since = now


_times: OperationTimes | None = None  # of this process, which measures one function at a time


@contextmanager
def measure_operations() -> Iterator[dict[str, float]]:
    """Measure the operations within the context; the dictionary is complete behind it.

    Contexts inside measure nothing.
    """
    global _times
    if _times is not None:
        yield {}
        return
    _times = times = OperationTimes()
    try:
        yield times.seconds
    finally:
        times.end()
        _times = None


def sum_operations(measured: Iterable[Mapping[str, float]]) -> Counter[str]:
    """Return the sums of processor seconds by operation."""
    sums: Counter[str] = Counter()
    for seconds in measured:
        sums.update(seconds)
    return sums


def charged(operation: str) -> Callable[[Function], Function]:
    """Charge the processor time of a function to an operation while one measures; of a generator function, its steps.

    Args:
        operation: Name of the operation; several functions may have the same.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            times = _times
            if times is None:
                return function(*args, **kwargs)
            times.begin(operation)
            try:
                result = function(*args, **kwargs)
            finally:
                times.end()
            return _charge_steps(result, operation) if isinstance(result, Iterator) else result

        return call  # type: ignore[return-value]

    return decorate


def _charge_steps(steps: Iterator[Any], operation: str) -> Iterator[Any]:
    while True:
        times = _times
        if times is not None:
            times.begin(operation)
        try:
            step = next(steps)
        except StopIteration:
            return
        finally:
            if times is not None:
                times.end()
        yield step
