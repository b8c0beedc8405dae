"""File of a source as the pass reads it: whether it changes meanwhile, and the digest of its bytes."""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from reelweave.loader.base.operations import charged
from reelweave.loader.errors import MachineError

_HASH_BLOCK_BYTES = 1 << 20


def file_state(file: BinaryIO) -> tuple[int, int] | None:
    """Return size and time of the last change of a local file; other storages detect changes themselves."""
    try:
        handle = file.fileno()
    except io.UnsupportedOperation:  # no file of this machine
        return None
    status = os.fstat(handle)
    return status.st_size, status.st_mtime_ns


@contextmanager
def watch_change(file: BinaryIO) -> Iterator[None]:
    """Raise a `MachineError` where a file was changed within the block, whatever came of it."""
    before = file_state(file)
    try:
        yield
    except Exception as error:
        if file_state(file) != before:
            raise MachineError("changed while it was read") from error
        raise
    if file_state(file) != before:
        raise MachineError("changed while it was read")


@charged("hash")
def sha256_of(file: BinaryIO) -> str:
    """Return the hex digest of a file's bytes."""
    digest = hashlib.sha256()
    remaining_bytes = file.seek(0, os.SEEK_END)  # a file that grows has no end
    file.seek(0)
    while remaining_bytes > 0 and (block := file.read(min(remaining_bytes, _HASH_BLOCK_BYTES))):
        digest.update(block)
        remaining_bytes -= len(block)
    return digest.hexdigest()
