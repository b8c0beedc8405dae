"""Work that is done before somebody asks for it."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterator[T], most: int) -> Iterator[T]:
    """The same items, made in a thread of their own, at most ``most`` of them before they are asked for."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="plan")
    try:
        pending = deque(pool.submit(next, items, end) for _ in range(most))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
