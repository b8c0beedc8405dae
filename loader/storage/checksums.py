"""SHA-256 checksums of local files."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Return the hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(
    paths: Iterable[Path], of: Callable[[Path], str] = file_sha256, described: bytes = b""
) -> str:
    """Return one hex digest of several files, of their names and contents.

    Args:
        paths: paths in an order of the caller's.
        of: hex digest of one file.
        described: hashed before them.
    """
    total = hashlib.sha256(described)
    for path in paths:
        total.update(f"{path.name} {of(path)}\n".encode())
    return total.hexdigest()
