"""Storage below a local folder."""

import errno
import functools
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from uuid import uuid4

from reelweave.loader.base.shared.locks import lock, unlock
from reelweave.loader.errors import NoRoomError, ObjectError, RunError, UsageError, lacks_room
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.names import LEASE, check_path, check_prefix, local_name
from reelweave.loader.storage.steady import SteadyFile, is_fault, machine_error, retry

T = TypeVar("T")

_UNFINISHED = ".reelweave-unfinished-"
_AT_ONCE = 1 << 26  # bytes; larger reads check the file's size first


_NOTHING_THERE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class _Folder(NamedTuple):
    """Folder during a listing.

    Attributes:
        paths: remaining paths in it.
        place: device and inode; None if the folder is gone.
    """

    paths: Iterator[str]
    place: tuple[int, int] | None


@dataclass(frozen=True)
class LocalStorage:
    """Files below ``folder``, which must be absolute; see `Storage` for the methods.

    Reads follow links, and are tried again for some seconds after a fault of the machine. Writes and deletions replace
    a link itself, and refuse folder links that lead outside. A killed writer leaves a hidden file that listings omit.
    """

    folder: Path

    @property
    def _path(self) -> str:
        return str(self.folder).rstrip("/")

    @property
    def root(self) -> str:
        return local_name(self._path)

    def uri(self, path: str) -> str:
        return local_name(f"{self._path}/{path}")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix).rpartition("/")[0]
        with self._faults("list", prefix):
            yield from self._walk(f"{folder}/" if folder else "", prefix)

    def stat(self, path: str) -> ObjectInfo | None:
        # Lists name so many files that a context manager and a path object would take longer than the request.
        try:
            status = os.stat(f"{self.folder}/{check_path(path)}")  # noqa: PTH116
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return None
            try:
                status = self._again(path, lambda: os.stat(f"{self.folder}/{path}"), error)  # noqa: PTH116
            except FileNotFoundError:
                return None
        return _info(path, status) if stat.S_ISREG(status.st_mode) else None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        # Samples are read so often that a context manager and a path object would take a third of the time.
        name = f"{self.folder}/{check_path(path)}"
        try:
            return _read(name, start, length)
        except _NO_FILE:
            raise FileNotFoundError(f"{self.uri(path)} does not exist") from None
        except OSError as error:
            return self._again(path, lambda: _read(name, start, length), error)

    def open(self, path: str) -> BinaryIO:
        # The file keeps its name, from which FFmpeg guesses the container.
        name = str(self.folder / check_path(path))
        with self._faults("read", path):
            try:
                return io.BufferedReader(retry(lambda: SteadyFile(name, _open_file)))
            except _NO_FILE:
                raise FileNotFoundError(f"{self.uri(path)} does not exist") from None

    def write(self, path: str, data: bytes) -> None:
        self._publish(path, lambda file: file.write(data), os.replace)

    def write_file(self, path: str, source: Path) -> None:
        with source.open("rb") as content:
            self._publish(path, lambda file: shutil.copyfileobj(content, file, 1 << 20), os.replace)

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:  # noqa: ARG002
        self._publish(path, lambda file: file.writelines(chunks), os.replace)

    def create(self, path: str, data: bytes) -> bool:
        return self._publish(path, lambda file: file.write(data), os.link)

    def create_file(self, path: str, source: Path) -> bool:
        with source.open("rb") as content:
            return self._publish(path, lambda file: shutil.copyfileobj(content, file, 1 << 20), os.link)

    def replace(self, path: str, data: bytes, version: str) -> bool:
        def place(unfinished: Path, target: Path) -> None:
            beside = target.with_name(f"{_UNFINISHED}lock")
            handle = lock(beside, wait=True)
            assert handle is not None
            try:
                existing = self.stat(path)
                if existing is None or existing.version != version:
                    raise FileExistsError
                unfinished.replace(target)
            finally:
                unlock(handle, beside)

        return self._publish(path, lambda file: file.write(data), place)

    def delete(self, path: str) -> None:
        target = self._writable(path)
        with self._faults("delete", path), suppress(IsADirectoryError, NotADirectoryError):
            target.unlink(missing_ok=True)

    def delete_many(self, paths: Iterable[str]) -> None:
        folders: dict[str, Path] = {}
        for path in paths:
            folder, _, name = check_path(path).rpartition("/")
            if folder not in folders:
                folders[folder] = self._writable(path).parent
            with self._faults("delete", path), suppress(*_NO_FILE):
                os.unlink(f"{folders[folder]}/{name}")  # noqa: PTH108 - a path object takes longer than the deletion

    def delete_tree(self, prefix: str) -> None:
        paths = [info.path for info in self.list(prefix)]
        for target in [self._writable(path) for path in paths]:  # check all before removing one
            with self._faults("delete", prefix):
                target.unlink(missing_ok=True)
        # Also those that a failed writer left without a file. Folders above the prefix stay, because other processes
        # may be about to write into them.
        for folder, _, _ in os.walk(self.folder / prefix.rpartition("/")[0], topdown=False):
            if f"{folder}/".startswith(f"{self._path}/{prefix}"):
                with suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106 - os.walk gives text

    def sweep(self) -> None:
        for unfinished in self.folder.rglob(f"{_UNFINISHED}*"):
            with self._faults("delete", unfinished.name):
                unfinished.unlink(missing_ok=True)

    def drop_versions(self) -> bool:
        return True

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield files below ``folder`` ("" or ending in a slash) in the order of their full paths."""
        folders = [_enter_folder(self.folder, folder)]
        while folders:
            path = next(folders[-1].paths, None)
            if path is None:
                folders.pop()
            elif (
                path.startswith(prefix)
                and not path.rpartition("/")[2].startswith(_UNFINISHED)
                and path != LEASE
            ):
                try:
                    status = os.stat(f"{self.folder}/{path}")  # noqa: PTH116
                except OSError as error:
                    if error.errno in _NOTHING_THERE:  # removed meanwhile, or a dangling link
                        continue
                    status = retry(functools.partial(os.stat, f"{self.folder}/{path}"))
                if stat.S_ISREG(status.st_mode):
                    yield _info(path, status)
                elif path.endswith("/"):
                    entered = _enter_folder(self.folder, path)
                    if entered.place not in {
                        above.place for above in folders
                    }:  # a link to a parent would loop
                        folders.append(entered)

    def _writable(self, path: str) -> Path:
        target = self.folder / check_path(path)
        inner = str(self.folder)
        for name in path.split("/")[:-1]:
            inner = f"{inner}/{name}"
            # To resolve the path each time would take as long as to write a small file.
            if os.path.islink(inner):  # noqa: PTH114 - a path object takes longer
                if not target.parent.resolve().is_relative_to(self.folder.resolve()):
                    raise UsageError(
                        f"{target} leads out of {self.root} through a link; remove the link or write elsewhere"
                    )
                break
        return target

    def _publish(
        self, path: str, fill: Callable[[BinaryIO], object], move: Callable[[Path, Path], object]
    ) -> bool:
        """Write a temporary file and place it atomically; return False if `move` finds an existing file."""
        target = self._writable(path)
        unfinished = target.with_name(_UNFINISHED + uuid4().hex)
        with self._faults("write", path):
            make_folder(target.parent)
            try:
                with unfinished.open("xb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    move(unfinished, target)
                except FileExistsError:
                    return False
                _sync_folder(target.parent)
            finally:
                unfinished.unlink(missing_ok=True)
        return True

    @contextmanager
    def _faults(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and verb == "read":
                raise
            raise self._fault(verb, path, error) from error

    def _again(self, path: str, operation: Callable[[], T], error: OSError) -> T:
        """Read again after an error, where that is a fault of the machine."""
        try:
            if not is_fault(error):
                raise error
            return retry(operation)
        except _NO_FILE:
            raise FileNotFoundError(f"{self.uri(path)} does not exist") from None
        except OSError as last:
            raise self._fault("read", path, last) from last

    def _fault(self, verb: str, path: str, error: OSError) -> RunError:
        if verb in ("read", "list") and is_fault(error):
            return machine_error(self.uri(path), error, verb)
        if lacks_room(error):
            return NoRoomError(f"cannot {verb} {self.uri(path)}: {error.strerror}; make room")
        kind = ObjectError if verb == "read" else RunError
        return kind(f"cannot {verb} {self.uri(path)}: {error.strerror or error}")


def _read(path: str, start: int, length: int | None) -> bytes:
    handle = _open_file(path)
    try:
        return _range(handle, start, length)
    finally:
        os.close(handle)


def _open_file(path: str | Path) -> int:
    """Open the file at ``path`` and return its handle.

    Raises:
        FileNotFoundError: the path is a pipe, a device or a folder; a plain open would block on a pipe.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError
    return handle


def _enter_folder(root: Path, folder: str) -> _Folder:
    def enter() -> tuple[os.stat_result, list[str]]:
        status = os.stat(f"{root}/{folder}")  # noqa: PTH116 - pathlib takes deep paths apart each time
        with os.scandir(f"{root}/{folder}") as entries:
            return status, sorted(f"{entry.name}/" if _is_folder(entry) else entry.name for entry in entries)

    try:
        folder_status, names = retry(enter)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return _Folder(iter(()), None)
        raise
    return _Folder((folder + name for name in names), (folder_status.st_dev, folder_status.st_ino))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # circular links
        return False


def _range(handle: int, start: int, length: int | None) -> bytes:
    if length is None or length > _AT_ONCE:
        available = os.fstat(handle).st_size - start
        length = max(0, available if length is None else min(available, length))
    data = os.pread(handle, length, start)
    # The kernel returns at most 2 GiB at once, and less at the end of the file.
    parts = [data]
    while data and len(data) < length:
        start, length = start + len(data), length - len(data)
        parts.append(data := os.pread(handle, length, start))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    # Two writes may share a timestamp, but not an inode.
    return ObjectInfo(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents durably, so that they survive a crash of the machine."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of its files survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
