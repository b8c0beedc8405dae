"""Files that the processes of one machine make once and share, mapped into memory.

Names follow from content. Whoever needs a file first makes it, under a lock; all others wait for it and map it. A file
appears whole or not at all, and a process that dies leaves nothing but a part that the next sweep removes.
"""

import fcntl
import functools
import hashlib
import logging
import os
import platform
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.base.cache_space import boot_id

_UNUSED_S = 7 * 86400.0
_log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


class NodeFiles:
    """Files in a folder that only this user can write. Can be pickled; nothing is done before the first use.

    Args:
        parent: on a disk or in the memory (``/dev/shm``) of this machine; None is the temporary folder. The files lie
            in a sub-folder of this user's, made where it is not there.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.folder = (parent or Path(tempfile.gettempdir())).absolute() / f"reelweave-{os.geteuid()}"

    def file(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Return the path of a file, made by ``fill`` where no process of this machine has made it yet.

        Args:
            name: fixes the content.
            fill: writes the content to the path it is given; may raise, and nothing appears then.

        Raises:
            OSError: the folder cannot be written, has no space left or belongs to another user.
        """
        path = self._own_folder() / name
        if not _used(path):
            with _locked(path.with_name(f"{name}.lock")):
                if not _used(path):
                    self._make(path, fill)
        return path

    def arrays(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
        """Return arrays [n] of a process that computed them, read-only and mapped.

        Where the folder cannot be used, they are computed here, and a line of the log says so.

        Args:
            name: fixes the content, together with the code of this package; letters, digits, "-" and "_".
            make: computes them; no flags, which Arrow packs into bits.
        """
        made: list[Mapping[str, NDArray[Any]]] = []

        def fill(path: Path) -> None:
            made.append(make())
            _write(path, made[0])

        name = f"{name}.{_this_code()}.arrays"
        for _ in range(2):
            try:
                path = self.file(name, fill)
            except OSError as error:
                _log.warning("%s cannot be shared by the processes of this machine: %s", self.folder, error)
                return dict(made[0] if made else make())
            try:
                return _read(path)
            except (OSError, pa.ArrowException):  # damaged, or swept in this moment
                self.drop(name)
        return dict(make())

    def drop(self, name: str) -> None:
        """Remove a file; those who have mapped it keep its content."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def drop_arrays(self, name: str) -> None:
        """Remove what `arrays` made under a name."""
        self.drop(f"{name}.{_this_code()}.arrays")

    def _make(self, path: Path, fill: Callable[[Path], None]) -> None:
        self._sweep()
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            fill(part)
            part.replace(path)
        finally:
            with suppress(OSError):
                part.unlink()

    def _own_folder(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{self.folder} is not a folder that only this user can write")
        return self.folder

    def _sweep(self) -> None:
        """Remove what nobody has used for a week."""
        with suppress(OSError), os.scandir(self.folder) as found:
            for one in found:
                with suppress(OSError):
                    if time.time() - one.stat(follow_symlinks=False).st_mtime > _UNUSED_S and one.is_file():
                        Path(one.path).unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system takes back from whoever dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        # Whoever still waits for this lock finds the file, and so does whoever makes a new one.
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(handle)


def _used(path: Path) -> bool:
    """Whether it is there; notes the use for the sweep."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    columns = {
        name: pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values))
        for name, values in arrays.items()
    }
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))


def _read(path: Path) -> Arrays:
    # Threads of pyarrow may outlive the interpreter (docs/notes/arrow.md).
    options = pa.ipc.IpcReadOptions(use_threads=False)
    batch = pa.ipc.open_file(pa.memory_map(str(path), "r"), options=options).get_batch(0)
    return {name: batch.column(name).values.to_numpy(zero_copy_only=True) for name in batch.schema.names}


@functools.cache
def _this_code() -> str:
    """Return a name of the code that computes, and of this start of the machine.

    Other code may compute other arrays, and what was not on the disk when the power failed may be zeros.
    """
    said = hashlib.sha256(
        f"{boot_id()} {platform.python_version()} {np.__version__} {pa.__version__}".encode()
    )
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        said.update(path.read_bytes())
    return said.hexdigest()[:16]
