"""Memory that was freed goes back to the system."""

import ctypes
import gc
from functools import cache
from typing import Any


def give_back() -> None:
    """Lets go of freed memory, where the C library keeps it.

    glibc does: buffers of pictures and motion vectors come and go in all sizes, and a worker that decodes 1080p for
    five minutes holds twice the memory it uses. Frames whose side data was looked at are cycles, which Python would
    collect some day.
    """
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
