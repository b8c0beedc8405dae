"""Checked reading of files listed in a manifest."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import BinaryIO, cast

from reelweave.loader.dataset.manifest import FileEntry, sha256
from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import Storage

MAX_TABLE_BYTES = 64 * 2**30
_SMALL_BYTES = 1 << 20


def read_listed(storage: Storage, entry: FileEntry, where: str) -> bytes:
    """Return the content of a listed file after checking size and checksum, without reading more than its size.

    Args:
        storage: storage of the dataset.
        entry: entry of the manifest.
        where: file name for messages.

    Raises:
        RunError: the file is missing, damaged or no file.
    """
    if entry.size > MAX_TABLE_BYTES:
        raise RunError(f"{where} has {entry.size} bytes, more than fits in memory")
    with explain_missing(where):
        data = storage.read(entry.path, 0, entry.size + 1)
    if len(data) != entry.size or sha256(data) != entry.sha256:
        raise RunError(f"{where} is damaged: its checksum is not the manifest's")
    return data


def check_listed(storage: Storage, entry: FileEntry, where: str) -> None:
    """Compare size and checksum of a listed file in bounded memory; arguments and errors as of `read_listed`."""
    with explain_missing(where):
        info = storage.stat(entry.path)
        if info is None:
            raise FileNotFoundError
        if info.size <= _SMALL_BYTES:
            read_listed(storage, entry, where)
            return
        with storage.open(entry.path) as file:
            same = info.size == entry.size and digest_of(file) == entry.sha256
    if not same:
        raise RunError(f"{where} is damaged: its checksum is not the manifest's")


def digest_of(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a file."""
    return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()


@contextmanager
def explain_missing(where: str) -> Iterator[None]:
    """Replace the error for a missing file by one that names the remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(
            f"{where} is missing, but manifest.json lists it; if the dataset was changed just now, run the same command"
            " again, else restore the file from a copy"
        ) from error
