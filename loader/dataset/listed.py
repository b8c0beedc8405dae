"""Checked reading of files listed in a manifest."""

from collections.abc import Iterator
from contextlib import contextmanager

from loader.dataset.manifest import FileEntry, sha256
from loader.errors import RunError
from loader.storage.base import Storage

MAX_TABLE_BYTES = 64 * 2**30


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
    with explained(where):
        data = storage.read(entry.path, 0, entry.size + 1)
    if len(data) != entry.size or sha256(data) != entry.sha256:
        raise RunError(f"{where} is damaged: its checksum is not the manifest's")
    return data


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Replace the error for a missing file by one that names the remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(f"{where} is missing, but manifest.json lists it; restore it from a copy") from error
