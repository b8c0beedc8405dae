"""Content of a file to be published: its bytes, or a file of this machine where they may be many."""

import hashlib
from io import BytesIO
from pathlib import Path

from reelweave.loader.dataset.listed import digest_of
from reelweave.loader.dataset.manifest import FileEntry
from reelweave.loader.storage.base import Storage

Payload = bytes | Path

_SMALL_BYTES = 1 << 20


def entry_of(path: str, payload: Payload) -> FileEntry:
    """Return the manifest's entry of a file."""
    if isinstance(payload, bytes):
        return FileEntry(path=path, size=len(payload), sha256=hashlib.sha256(payload).hexdigest())
    with payload.open("rb") as file:
        return FileEntry(path=path, size=payload.stat().st_size, sha256=digest_of(file))


def create(storage: Storage, path: str, payload: Payload) -> bool:
    """Write an object only if it does not exist yet; return False if it does."""
    return storage.create(path, payload) if isinstance(payload, bytes) else storage.create_file(path, payload)


def write(storage: Storage, path: str, payload: Payload) -> None:
    """Create or replace an object."""
    if isinstance(payload, bytes):
        storage.write(path, payload)
    else:
        storage.write_file(path, payload)


def is_there(storage: Storage, entry: FileEntry) -> bool:
    """Return whether an object has size and checksum of an entry."""
    stat = storage.stat(entry.path)
    if stat is None or stat.size != entry.size:
        return False
    if entry.size <= _SMALL_BYTES:
        return digest_of(BytesIO(storage.read(entry.path))) == entry.sha256
    with storage.open(entry.path) as file:
        return digest_of(file) == entry.sha256
