"""Prefetching of an iterator in a background thread."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], max_items: int) -> Iterator[T]:
    """Yield the same items, computed in a thread, at most ``max_items`` of them in advance."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="plan")
    try:
        pending = deque(pool.submit(next, items, end) for _ in range(max_items))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
