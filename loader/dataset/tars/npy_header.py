"""Headers of .npy files, of bounded size."""

import io
import os
import threading

import numpy as np

_PARSING = threading.Lock()
# A child that is forked while another thread parses would wait for ever.
os.register_at_fork(
    before=_PARSING.acquire, after_in_parent=_PARSING.release, after_in_child=_PARSING.release
)
_MOST_BYTES = 10_000


def npy_header(
    file: io.BytesIO, most_bytes: int = _MOST_BYTES
) -> tuple[tuple[int, ...], bool, "np.dtype[np.generic]"]:
    """Read the header of a .npy file of format 1.0: shape, whether columns come first, and dtype.

    One thread parses at a time. CPython 3.11 counts the depth of all threads' syntax trees together, and fails where
    threads take turns: "AST constructor recursion depth mismatch" (its issue 106905).

    Args:
        file: the file, which is left at the first value.
        most_bytes: largest header.

    Raises:
        ValueError: it is no such file.
    """
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"format {version}")
    with _PARSING:
        shape, by_columns, kind = np.lib.format.read_array_header_1_0(file, max_header_size=most_bytes)
    return shape, by_columns, kind
