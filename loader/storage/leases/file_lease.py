"""Lease of a local folder: a locked file that names its holder."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from reelweave.loader.base.shared.locks import NO_LOCKS, lock, unlock
from reelweave.loader.errors import RunError
from reelweave.loader.storage.leases.holder import LeaseHolder, lease_held_error, read_holder
from reelweave.loader.storage.local import LocalStorage, make_folder
from reelweave.loader.storage.names import LEASE

_LAST_BREATH_S = 10.0  # a killed process frees its memory before its locks
_PAUSE_S = 0.02


class NoLocksError(RunError):
    """File system without file locks."""


@dataclass
class FileLease:
    """Lease of a local folder by a file lock.

    A stopped process keeps its lock, so no other process takes over; the kernel releases the lock when the process
    ends. On NFS the file server releases the locks of a crashed machine.

    Attributes:
        storage: leased folder.
        holder: this process.
    """

    storage: LocalStorage
    holder: LeaseHolder
    _handle: int | None = field(default=None, init=False)
    _made: list[Path] = field(default_factory=list, init=False)

    @property
    def _path(self) -> Path:
        return self.storage.folder / LEASE

    def acquire(self) -> None:
        """Lock the file, see `reelweave.loader.storage.leases.lease.Lease`."""
        above = [self.storage.folder, *self.storage.folder.parents]
        self._made = [folder for folder in above if not folder.is_dir()]
        try:
            make_folder(self.storage.folder)
            deadline = time.monotonic() + _LAST_BREATH_S
            while not self._locked():
                other = read_holder(self.storage)
                # A process that has just locked the file is about to write its name.
                if (other is not None and not other.is_gone) or time.monotonic() > deadline:
                    raise lease_held_error(self.storage.root, other)
                time.sleep(_PAUSE_S)
        except OSError as error:
            self._tidy()
            if error.errno in NO_LOCKS:
                raise NoLocksError(
                    f"{self.storage.root} lies on a file system without file locks ({error.strerror}), so two runs"
                    " at once could damage it; mount it with locks, or write elsewhere"
                ) from error
            raise RunError(f"cannot write {self._path}: {error.strerror or error}") from error

    def release(self) -> None:
        """Unlock and remove the file, see `reelweave.loader.storage.leases.lease.Lease`."""
        if self._handle is None:
            return
        unlock(self._handle, self._path)
        self._handle = None
        self._tidy()

    def _locked(self) -> bool:
        self._handle = lock(self._path, wait=False)
        if self._handle is None:
            return False
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, self.holder.to_bytes(), 0)
        return True

    def _tidy(self) -> None:
        """Remove the empty folders made for the lease."""
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()
