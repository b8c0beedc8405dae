"""SHA-256 checksums of local files."""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from reelweave.loader.base.processors import processors

_MOST_THREADS = 8


def file_sha256(path: Path) -> str:
    """Return the hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unchanged_file_sha256(path: Path) -> str:
    """Return the hex digest of a file's content; a process reads a file once, unless it changes."""
    status = path.stat()
    # The time of the last change of the inode cannot be set back by a copy that keeps the others.
    return _cached_checksum(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _cached_checksum(path: Path, *_: int) -> str:
    return file_sha256(path)


def each_sha256(paths: Iterable[Path], of: Callable[[Path], str] = unchanged_file_sha256) -> list[str]:
    """Return the hex digest of each file, in their order; several files are read at the same time."""
    with ThreadPoolExecutor(min(_MOST_THREADS, processors())) as pool:
        return list(pool.map(of, paths))


def files_sha256(
    paths: Iterable[Path], of: Callable[[Path], str] = unchanged_file_sha256, described: bytes = b""
) -> str:
    """Return one hex digest of several files, of their names and contents.

    Args:
        paths: paths in an order of the caller's.
        of: hex digest of one file.
        described: hashed before them.
    """
    total = hashlib.sha256(described)
    paths = list(paths)
    for path, digest in zip(paths, each_sha256(paths, of), strict=True):
        total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()
