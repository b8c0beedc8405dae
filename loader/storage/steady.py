"""Reads that outlive a fault of the disk or its server for some seconds, and remember one that they did not outlive."""

import errno
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from reelweave.loader.errors import MachineError, RunError, refuse_shortage

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_PAUSES_S = (0.05, 0.3, 1.2)
_FACTS = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL))
"""Errors that say something of the file; all others are faults of the machine, its disk or its network."""

_LASTING = frozenset((errno.EACCES, errno.EPERM))
"""Faults of the machine that seldom end within seconds."""


def is_fault(error: OSError) -> bool:
    """Return whether an error is a fault of the machine, its disk or its network, and says nothing of the file."""
    return error.errno is not None and error.errno not in _FACTS


def machine_error(where: str, error: OSError, verb: str = "read") -> MachineError:
    """Return the error to raise for a fault of the machine."""
    return MachineError(f"cannot {verb} {where}: {error.strerror or error}")


def refuse_fault(error: BaseException, where: str) -> None:
    """Raise a `MachineError` where an error comes from this machine, and not from what was read.

    Args:
        error: error of a library that reads a file.
        where: URI of the file.
    """
    refuse_shortage(error, f"read {where}")
    # Errors of Arrow have no number.
    if isinstance(error, OSError) and error.errno is not None and is_fault(error):
        raise machine_error(where, error) from error


def retry(operation: Callable[[], T]) -> T:
    """Call an operation on a local file until it ends without a fault of the machine, for 1.5 s.

    Raises:
        OSError: the fault lasts, or is none of the machine.
    """
    for pause_s in _PAUSES_S:
        try:
            return operation()
        except OSError as error:
            if not is_fault(error) or error.errno in _LASTING:
                raise
        time.sleep(pause_s)
    return operation()


class SteadyFile(io.FileIO):
    """Local file whose reads are tried again after faults of the machine; a stale handle of NFS is opened again.

    Args:
        path: path of the file.
        opener: function from the path to a handle.

    Attributes:
        fault: the fault that outlived this, which every later read raises again; None before.
    """

    def __init__(self, path: str, opener: Callable[[str], int]) -> None:
        super().__init__(path, "rb", opener=lambda name, _: opener(name))
        self._path, self._opener = path, opener
        self._state = _state(self.fileno())
        self.fault: MachineError | None = None

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        """Read into a buffer; see `io.RawIOBase`.

        Raises:
            MachineError: the disk, its server or this machine fails.
        """
        return self._steady(lambda: io.FileIO.readinto(self, buffer))

    def readall(self) -> bytes:
        """Read to the end; errors as of `readinto`."""
        start = self.tell()

        def read() -> bytes:
            self.seek(start)
            return io.FileIO.readall(self) or b""

        return self._steady(read)

    def _steady(self, read: Callable[[], T]) -> T:
        if self.fault is not None:
            raise self.fault
        try:
            return read()
        except OSError as error:
            if not is_fault(error):
                raise
        return self._read_again(read)

    def _read_again(self, read: Callable[[], T]) -> T:
        def again() -> T:
            try:
                return read()
            except OSError as error:
                if error.errno == errno.ESTALE:
                    self._reopen()
                raise

        try:
            return retry(again)
        except OSError as error:
            self.fault = machine_error(self._path, error)
            raise self.fault from error
        except MachineError as error:
            self.fault = error
            raise

    def _reopen(self) -> None:
        """Replace a stale handle by one of the same file."""
        fresh = self._opener(self._path)
        try:
            if _state(fresh) != self._state:
                raise MachineError(f"{self._path} changed while it was read")
            position = os.lseek(self.fileno(), 0, os.SEEK_CUR)
            os.dup2(fresh, self.fileno(), inheritable=False)
            os.lseek(self.fileno(), position, os.SEEK_SET)
        finally:
            os.close(fresh)


def _state(handle: int) -> tuple[int, int, int]:
    status = os.fstat(handle)
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def whole_reads(file: BinaryIO, verify: bool = False) -> Iterator[None]:
    """Raise the fault that reads of a file met within the block, whatever came of it.

    Libraries take a failed read for the end of the file, or for damage, and go on.

    Args:
        file: file of a storage.
        verify: True to compare the whole file with the checksum of its store, where that has one.
    """
    try:
        yield
        _verify(file, verify)
    except Exception as error:
        if not isinstance(error, RunError):
            _verify(file, verify)
        if (fault := _fault_of(file)) is not None and fault is not error:
            raise fault from error
        raise
    if (fault := _fault_of(file)) is not None:
        raise fault


def _verify(file: BinaryIO, verifies: bool) -> None:
    compare = getattr(getattr(file, "raw", None), "verify", None)
    if verifies and compare is not None:
        compare()


def _fault_of(file: BinaryIO) -> RunError | None:
    fault: RunError | None = getattr(getattr(file, "raw", None), "fault", None)
    return fault
