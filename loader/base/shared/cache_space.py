"""LRU eviction for the shared disk cache: accounting of bytes and removal of files, by one process at a time."""

import errno
import os
import re
import stat
import struct
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reelweave.loader.base.shared.locks import lock_handle, unlock_handle

_FOLDER = "reelweave-cache-1"  # the number changes with the format of the files
_STATE = "state"  # marks the folder as a cache, holds the byte count, and is locked during changes
_OLDEST = "oldest"  # queue of entries to evict, the next one last
_UNFINISHED = "unfinished"  # a single name suffices, because writers hold the lock
_ENTRY = re.compile(r"[0-9a-f]{40}\.entry")
_COUNT = re.compile(rb"(.{36}) (\d{20})\n")
_RECORD = struct.Struct("<20sq")
_BLOCK = 4096
_SHARE = 0.1  # share of the space that one scan lists for eviction
_LOOKS = 5  # scans per insertion; one suffices unless the listed entries are used at the same moment
_PATIENCE_S = 5.0


def on_disk(size: int) -> int:
    """Return the disk space of a file in bytes, rounded up to whole blocks."""
    return -(-size // _BLOCK) * _BLOCK


class CacheSpace:
    """Files of a cache within a bounded disk space.

    All changes of the folder happen under one lock, so partial changes are left by dead processes. The byte count is
    never too low: it grows before a file appears and shrinks after its removal. Finding the oldest entries takes a scan
    of all entries; one scan lists a tenth of the space, and all processes share the list. Entries used after the scan
    are skipped.

    Args:
        parent: configured folder; the files lie in a subfolder.
        max_bytes: maximum disk space of all files together.
    """

    def __init__(self, parent: Path, max_bytes: int) -> None:
        self.folder = parent / _FOLDER
        self.max_bytes = max_bytes
        self._boot = boot_id()

    def path(self, name: bytes) -> str:
        """Return the path of the entry with this name of 20 bytes."""
        return f"{self.folder}/{name.hex()}.entry"

    def place(self, path: str, size: int, fill: Callable[[BinaryIO], object]) -> None:
        """Create or replace the entry at ``path``, of ``size`` bytes, after evicting others if necessary.

        Raises:
            TimeoutError: other processes keep the folder locked.
            OSError: the disk is full, or the folder is not writable or no cache folder.
        """
        with self._alone() as state:
            used = self._make_room(self._count_used(state), on_disk(size), path)
            os.pwrite(state, f"{self._boot} {used + on_disk(size):020}\n".encode(), 0)
            self._publish(path, fill)

    def remove(self, path: str) -> None:
        """Remove the entry at ``path``, if it exists.

        Raises:
            OSError: see `place`.
        """
        with self._alone() as state:
            used, freed = self._count_used(state), _remove(path)
            if used is not None:
                os.pwrite(state, f"{self._boot} {used - freed:020}\n".encode(), 0)

    def _publish(self, path: str, fill: Callable[[BinaryIO], object]) -> None:
        unfinished = self.folder / _UNFINISHED
        unfinished.unlink(missing_ok=True)
        try:
            with unfinished.open("xb") as file:
                fill(file)
            unfinished.replace(self.folder / path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _make_room(self, used: int | None, size: int, path: str) -> int:
        """Return the bytes in use once ``path`` is gone and ``size`` more bytes fit."""
        looks = 0
        if used is None:
            used = self._look(size)
        used -= _remove(path)
        while used + size > self.max_bytes:
            if (oldest := self._next_to_leave()) is not None:
                name, last_use = oldest
                used -= _remove(self.path(name), last_use)
            elif looks == _LOOKS:
                raise OSError(errno.EBUSY, "its entries cannot be removed")
            else:
                used, looks = self._look(size), looks + 1
        return used

    def _count_used(self, state: int) -> int | None:
        """Return the bytes in use; None if no process has counted them since the machine booted."""
        match = _COUNT.fullmatch(os.pread(state, 64, 0))
        # After a crash of the machine the count may be older than the entries.
        return int(match[2]) if match and match[1].decode(errors="replace") == self._boot else None

    def _next_to_leave(self) -> tuple[bytes, int] | None:
        """Pop the next entry to evict: its name and last use; None at the end of the list."""
        with suppress(FileNotFoundError), FileIO(self.folder / _OLDEST, "r+", opener=not_a_link) as file:
            index = file.seek(0, os.SEEK_END) // _RECORD.size - 1
            if index >= 0:
                file.seek(index * _RECORD.size)
                record = file.read(_RECORD.size)
                file.truncate(index * _RECORD.size)
                return _RECORD.unpack(record)
        return None

    def _look(self, size: int) -> int:
        """Scan the folder, list the oldest entries that free ``size`` bytes, and return the bytes in use."""
        # 36 bytes per entry, since there may be millions.
        names, uses, sizes = bytearray(), array("q"), array("q")
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if _ENTRY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        names += bytes.fromhex(entry.name[:40])
                        uses.append(facts.st_mtime_ns)
                        sizes.append(on_disk(facts.st_size))
        last_use = np.array(uses, np.int64)
        # Last uses in the future, by a clock that was set back since, count as oldest; else they would never leave.
        order = np.lexsort((last_use, last_use <= time.time_ns()))
        space = np.cumsum(np.array(sizes, np.int64)[order])
        enough = max(_SHARE * self.max_bytes, sum(sizes) + size - self.max_bytes)
        listed = order[: np.searchsorted(space, enough) + 1]
        records = (_RECORD.pack(names[20 * at : 20 * at + 20], uses[at]) for at in listed[::-1].tolist())
        self._publish(_OLDEST, lambda file: file.write(b"".join(records)))
        return sum(sizes)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Lock the folder against other threads and processes, and return the open state file."""
        state = self._open_state()
        try:
            give_up = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    lock_handle(state)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked") from None
                time.sleep(0.0005)
            try:
                yield state
            finally:
                unlock_handle(state)  # closing does not suffice after a fork
        finally:
            os.close(state)

    def _open_state(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if not self.folder.is_symlink():
            with suppress(FileNotFoundError):
                return os.open(self.folder / _STATE, flags)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)  # samples of private buckets lie here
            # The state file is created first and stays; a non-empty folder without it is no cache.
            if not any(self.folder.iterdir()) or (self.folder / _STATE).exists():
                return os.open(self.folder / _STATE, flags | os.O_CREAT, 0o600)
        raise FileExistsError(errno.EEXIST, "it is not a folder that a cache made, move it away")


def _remove(path: str, last_use: int | None = None) -> int:
    """Remove an entry, only if last used at ``last_use`` where given; return the bytes freed."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and last_use in (None, status.st_mtime_ns):
            Path(path).unlink()
            return on_disk(status.st_size)
    return 0


def not_a_link(path: str, flags: int) -> int:
    """Open a file; fail on symbolic links."""
    return os.open(path, flags | os.O_NOFOLLOW)


def boot_id() -> str:
    """Return 36 characters that change with every boot of the machine; blanks where unknown."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot:36.36}"
