"""Files that one process holds locked, whatever machine it runs on."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems on which no file can be locked."""


def lock(path: Path, wait: bool) -> int | None:
    """Return the handle of a file that is locked and has its name, made where it was missing.

    A file and not a folder, and open for writing: NFS locks nothing else.

    Args:
        path: Of the file.
        wait: Until whoever holds it lets go; else None is returned.

    Raises:
        OSError: It cannot be made, or not be locked (`NO_LOCKS`).
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_named(handle, path):
                with suppress(OSError):  # whoever may write to the folder may lock, too
                    os.fchmod(handle, stat.S_IMODE(path.parent.stat().st_mode) & 0o666)
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed it before it let go


def unlock(handle: int, path: Path) -> None:
    """Remove the file and let go of it."""
    if _is_named(handle, path):
        with suppress(OSError):
            path.unlink()
    os.close(handle)


def _is_named(handle: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
