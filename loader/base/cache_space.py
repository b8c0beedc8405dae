"""Who leaves a cache folder, and when: bytes counted and files removed, by one process at a time."""

import errno
import fcntl
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

_FOLDER = "reelweave-cache-1"  # the number changes with the format of the files in it
_STATE = "state"  # marks the folder as ours, is locked by whoever changes it, and holds the count
_OLDEST = "oldest"  # the entries to leave next, the very next one last
_UNFINISHED = "unfinished"  # one is enough: who writes holds the lock
_ENTRY = re.compile(r"[0-9a-f]{40}\.entry")
_COUNT = re.compile(rb"(.{36}) (\d{20})\n")
_RECORD = struct.Struct("<20sq")
_BLOCK = 4096
_SHARE = 0.1  # of the space: what is looked for at once
_LOOKS = 5  # one is enough unless what it lists is used in the same moment
_PATIENCE_S = 5.0


def on_disk(size: int) -> int:
    """Bytes that a file takes: whole blocks of the disk."""
    return -(-size // _BLOCK) * _BLOCK


class CacheSpace:
    """The files of a cache, which together take at most so much space.

    All that changes the folder happens under one lock, so whatever is found half done was left by a dead process. The
    count is never too low: it grows before a file appears and shrinks after one is gone. Finding the oldest
    entries means looking at all of them; that is done once for a tenth of the space, and the list serves all
    processes. An entry used after it was listed is passed over.

    Args:
        parent: the folder a person named; the files lie in a sub-folder.
        max_bytes: most space of all of them.
    """

    def __init__(self, parent: Path, max_bytes: int) -> None:
        self.folder = parent / _FOLDER
        self.max_bytes = max_bytes
        self._boot = boot_id()

    def path(self, name: bytes) -> str:
        """Where the entry with this name of 20 bytes lies."""
        return f"{self.folder}/{name.hex()}.entry"

    def place(self, path: str, size: int, fill: Callable[[BinaryIO], object]) -> None:
        """Makes or replaces the entry at ``path``, of ``size`` bytes, once there is room.

        Raises:
            TimeoutError: others keep the folder locked.
            OSError: the disk is full, the folder cannot be written or is not ours.
        """
        with self._alone() as state:
            used = self._make_room(self._used(state), on_disk(size), path)
            os.pwrite(state, f"{self._boot} {used + on_disk(size):020}\n".encode(), 0)
            self._publish(path, fill)

    def remove(self, path: str) -> None:
        """Removes the entry at ``path``, if there is one.

        Raises:
            OSError: as of `place`.
        """
        with self._alone() as state:
            used, freed = self._used(state), _remove(path)
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
        """Bytes in use when ``path`` is gone and ``size`` more fit."""
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

    def _used(self, state: int) -> int | None:
        """Bytes in use; None when nobody has counted since the machine was started."""
        found = _COUNT.fullmatch(os.pread(state, 64, 0))
        # After a crash of the machine the count may be older than the entries.
        return int(found[2]) if found and found[1].decode(errors="replace") == self._boot else None

    def _next_to_leave(self) -> tuple[bytes, int] | None:
        """Name and last use, taken off the list; None when the list is at its end."""
        with suppress(FileNotFoundError), FileIO(self.folder / _OLDEST, "r+", opener=not_a_link) as file:
            left = file.seek(0, os.SEEK_END) // _RECORD.size - 1
            if left >= 0:
                file.seek(left * _RECORD.size)
                record = file.read(_RECORD.size)
                file.truncate(left * _RECORD.size)
                return _RECORD.unpack(record)
        return None

    def _look(self, size: int) -> int:
        """Lists the oldest entries anew, enough of them for ``size`` more bytes; returns the bytes in use."""
        # 36 bytes for each of perhaps millions.
        names, uses, sizes = bytearray(), array("q"), array("q")
        with os.scandir(self.folder) as found:
            for one in found:
                with suppress(FileNotFoundError):
                    if _ENTRY.fullmatch(one.name) and one.is_file(follow_symlinks=False):
                        facts = one.stat(follow_symlinks=False)
                        names += bytes.fromhex(one.name[:40])
                        uses.append(facts.st_mtime_ns)
                        sizes.append(on_disk(facts.st_size))
        last_use = np.array(uses, np.int64)
        # What seems to be used in the future, by a clock that was set back since, would never leave.
        order = np.lexsort((last_use, last_use <= time.time_ns()))
        space = np.cumsum(np.array(sizes, np.int64)[order])
        enough = max(_SHARE * self.max_bytes, sum(sizes) + size - self.max_bytes)
        listed = order[: np.searchsorted(space, enough) + 1]
        records = (_RECORD.pack(names[20 * at : 20 * at + 20], uses[at]) for at in listed[::-1].tolist())
        self._publish(_OLDEST, lambda file: file.write(b"".join(records)))
        return sum(sizes)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The open state file, while no other thread or process may change the folder."""
        state = self._open_state()
        try:
            give_up = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked") from None
                time.sleep(0.0005)
            try:
                yield state
            finally:
                # Closing would not do: a process forked meanwhile has the file open too.
                fcntl.flock(state, fcntl.LOCK_UN)
        finally:
            os.close(state)

    def _open_state(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if not self.folder.is_symlink():
            with suppress(FileNotFoundError):
                return os.open(self.folder / _STATE, flags)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)  # not everybody may read what is in the bucket
            # The state file comes first and stays: a folder with others and without it is not ours.
            if not any(self.folder.iterdir()) or (self.folder / _STATE).exists():
                return os.open(self.folder / _STATE, flags | os.O_CREAT, 0o600)
        raise FileExistsError(errno.EEXIST, "it is not a folder that a cache made, move it away")


def _remove(path: str, last_use: int | None = None) -> int:
    """Removes an entry, where given only if it was last used then; returns the bytes that this frees."""
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and last_use in (None, found.st_mtime_ns):
            Path(path).unlink()
            return on_disk(found.st_size)
    return 0


def not_a_link(path: str, flags: int) -> int:
    """Opens a file that nobody put a link in the place of."""
    return os.open(path, flags | os.O_NOFOLLOW)


def boot_id() -> str:
    """36 characters that change with every start of the machine, where it tells."""
    found = ""
    with suppress(OSError):
        found = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{found:36.36}"
