"""Temporary folders for what does not fit in memory; the next run removes those of killed ones."""

import os
import shutil
import socket
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from reelweave.loader.base.shared.locks import lock_handle

_OWNER = ".owner"
"""File that the owner of a folder keeps locked; it holds the name of the machine."""


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder, removed with this object, or by the next one of its prefix if this process is killed.

    Args:
        prefix: Start of its name.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        super().__init__(prefix=prefix)
        self._release = weakref.finalize(self, os.close, _own_folder(Path(self.name)))

    def cleanup(self) -> None:
        """Remove the folder, and release the lock of its owner."""
        super().cleanup()
        self._release()


def _own_folder(folder: Path) -> int:
    """Lock the folder's file of the owner, and return its handle."""
    new = folder / f"{_OWNER}.new"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(handle, _machine())
    with suppress(OSError):  # without locks the folder stays if this process is killed
        lock_handle(handle)
        new.rename(folder / _OWNER)  # nobody sees it unlocked
    return handle


def _sweep(prefix: str) -> None:
    """Remove the folders of this user and machine whose owner is gone."""
    for owner in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_OWNER}"):
        with suppress(OSError):
            _remove_left(owner)


def _remove_left(owner: Path) -> None:
    """Remove the folder of an owner's file.

    Raises:
        OSError: its owner lives, or it is somebody else's.
    """
    if owner.parent.is_symlink() or owner.parent.stat().st_uid != os.getuid():
        return
    handle = os.open(owner, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        lock_handle(handle)
        # A folder may be shared by machines that do not see each other's locks.
        if os.read(handle, 1024) == _machine():
            shutil.rmtree(owner.parent)
    finally:
        os.close(handle)


def _machine() -> bytes:
    return socket.gethostname().encode()
