"""Memory-mapped files that one process of a machine makes for all.

File names derive from content. The first process that needs a file makes it under a lock; the others wait and map it.
Files appear whole or not at all. A process that dies leaves at most a partial file, which the next sweep removes.
"""

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

import reelweave.loader
from reelweave.loader.base.shared.cache_space import boot_id
from reelweave.loader.base.shared.locks import lock_handle
from reelweave.loader.base.whole_file import whole_file

_UNUSED_S = 7 * 86400.0
_log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


class NodeFiles:
    """Files in a folder that only this user can write; picklable, and created on first use.

    Args:
        parent: folder on a local disk or in memory (``/dev/shm``); None is the temporary folder. The files lie in a
            subfolder of the user's own.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.folder = (parent or Path(tempfile.gettempdir())).absolute() / f"reelweave-{os.geteuid()}"
        self._warned = False

    def file(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Return the path of a file, made by ``fill`` unless a process of this machine has made it before.

        Args:
            name: file name, which identifies the content.
            fill: function that writes the content to the given path; if it raises, no file appears.

        Raises:
            OSError: the folder is not writable, has no space left or belongs to another user.
        """
        path = self._own_folder() / name
        if not _used(path):
            with _hold_lock(path.with_name(f"{name}.lock")):
                if not _used(path):
                    self._make(path, fill)
        return path

    def arrays(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
        """Return arrays [n], computed by one process, as read-only memory maps.

        Where the folder is unusable, each process computes them, and the first time logs a warning.

        Args:
            name: name that identifies the content together with this package's code; letters, digits, "-" and "_".
            make: function that computes the arrays; without booleans, which Arrow packs into bits.
        """
        shared_arrays: list[Mapping[str, NDArray[Any]]] = []

        def fill(path: Path) -> None:
            shared_arrays.append(make())
            _write(path, shared_arrays[0])

        name = f"{name}.{_this_code()}.arrays"
        for _ in range(2):
            try:
                path = self.file(name, fill)
            except OSError as error:
                self._warn(error)
                return dict(shared_arrays[0] if shared_arrays else make())
            try:
                return _read(path)
            except (OSError, pa.ArrowException):  # damaged, or swept in this moment
                self.drop(name)
        return dict(make())

    def held_arrays(self, name: str) -> Arrays | None:
        """Return arrays that a process of this machine made under a name since its start, see `arrays`; else None."""
        path = self.folder / f"{name}.{_this_code()}.arrays"
        try:
            return _read(path) if path.lstat().st_uid == os.geteuid() else None
        except (OSError, pa.ArrowException):
            return None

    def batches(
        self, name: str, schema: pa.Schema, make: Callable[[], Iterator[pa.RecordBatch]]
    ) -> list[pa.RecordBatch]:
        """Return record batches, computed by one process, as read-only memory maps; else as of `arrays`.

        Args:
            name: name that identifies the content together with this package's code.
            schema: schema of the batches.
            make: function that yields the batches.
        """

        def fill(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in make():
                    writer.write_batch(batch)

        name = f"{name}.{_this_code()}.batches"
        for _ in range(2):
            try:
                path = self.file(name, fill)
            except OSError as error:
                self._warn(error)
                break
            try:
                reader = _open_mapped(path)
                return [reader.get_batch(index) for index in range(reader.num_record_batches)]
            except (OSError, pa.ArrowException):  # damaged, or swept in this moment
                self.drop(name)
        return list(make())

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s cannot be shared by the processes of this machine: %s", self.folder, error)

    def drop(self, name: str) -> None:
        """Remove a file; processes that have mapped it keep its content."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def drop_arrays(self, name: str) -> None:
        """Remove the file of `arrays` under a name."""
        self.drop(f"{name}.{_this_code()}.arrays")

    def _make(self, path: Path, fill: Callable[[Path], None]) -> None:
        self._sweep()
        with whole_file(path) as part:
            fill(part)

    def _own_folder(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{self.folder} is not a folder that only this user can write")
        return self.folder

    def _sweep(self) -> None:
        """Remove files unused for a week."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if (
                        time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNUSED_S
                        and entry.is_file()
                    ):
                        Path(entry.path).unlink()


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        lock_handle(handle, wait=True)
        yield
        # Processes still waiting for this lock, or for a new one, find the finished file.
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(handle)


def _used(path: Path) -> bool:
    """Return whether the file exists, and update its time of use for the sweep."""
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
    batch = _open_mapped(path).get_batch(0)
    return {name: batch.column(name).values.to_numpy(zero_copy_only=True) for name in batch.schema.names}


def _open_mapped(path: Path) -> pa.RecordBatchFileReader:
    # Threads of pyarrow may outlive the interpreter (docs/notes/arrow.md).
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_file(pa.memory_map(str(path), "r"), options=options)


@functools.cache
def _this_code() -> str:
    """Return a hash of this package's code, of library versions and of the machine's boot.

    Other code may compute other arrays; after a power failure, unwritten blocks of a file may be zeros.
    """
    digest = hashlib.sha256(
        f"{boot_id()} {platform.python_version()} {np.__version__} {pa.__version__}".encode()
    )
    for path in sorted(Path(reelweave.loader.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
