"""Exclusive file locks, valid across machines."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
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
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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


def _is_named(handle: int, path: Path) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
