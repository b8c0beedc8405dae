"""Return of freed memory to the operating system."""

import ctypes
import gc
from functools import cache
from typing import Any


def give_back() -> None:
    """Return freed memory that the C library keeps to the operating system.

    glibc keeps it, since buffers of pictures and motion vectors come and go in all sizes. A worker that
    decodes 1080p for five minutes then holds twice the memory it uses. Frames whose side data was read are
    reference cycles, so they are collected first.
    """
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
