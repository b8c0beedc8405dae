"""A file of a dataset as its manifest lists it: there, of its size, with its checksum."""

from collections.abc import Iterator
from contextlib import contextmanager

from loader.dataset.manifest import FileEntry, sha256
from loader.errors import RunError
from loader.storage.base import Storage

MAX_TABLE_BYTES = 64 * 2**30


def read_listed(storage: Storage, entry: FileEntry, where: str) -> bytes:
    """Return the content of a listed file; of a larger one, no more than that is read.

    Args:
        storage: of the dataset.
        entry: of the manifest.
        where: the file, for messages.

    Raises:
        RunError: it is missing, damaged or no file at all.
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
    """Turn the error for a missing file into words that say what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(f"{where} is missing, but manifest.json lists it; restore it from a copy") from error
