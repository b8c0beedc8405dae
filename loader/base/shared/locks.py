"""Exclusive file locks, which end with the process that holds them; valid across machines where the file system is."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without file locks."""


def lock(path: Path, wait: bool) -> int | None:
    """Lock a file, created if missing, and return its handle.

    NFS locks only regular files that are open for writing, hence a file instead of the folder.

    Args:
        path: path of the file.
        wait: True to wait for the current holder; otherwise None is returned.

    Raises:
        OSError: the file cannot be created or locked (`NO_LOCKS`).
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            lock_handle(handle, wait)
            if _is_named(handle, path):
                with suppress(OSError):  # everyone with write access to the folder may lock
                    os.fchmod(handle, stat.S_IMODE(path.parent.stat().st_mode) & 0o666)
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the holder removed the file before it released the lock


def unlock(handle: int, path: Path) -> None:
    """Remove the file and release the lock."""
    if _is_named(handle, path):
        with suppress(OSError):
            path.unlink()
    os.close(handle)


@contextmanager
def lock_if_possible(path: Path) -> Iterator[None]:
    """Keep out other processes by a file's lock; where no lock can be had, nobody waits. The file stays."""
    handle = None
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = lock(path, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def lock_handle(handle: int, wait: bool = False) -> None:
    """Take the exclusive lock of an open file.

    Raises:
        BlockingIOError: another one holds it, and ``wait`` is False.
        OSError: the file system has no locks (`NO_LOCKS`).
    """
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def unlock_handle(handle: int) -> None:
    """Release the lock of an open file, also of processes forked meanwhile, which hold it open, too."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def _is_named(handle: int, path: Path) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
