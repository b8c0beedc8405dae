"""Error boundary of one source: classification of its errors, and their names in the accounting."""

import errno
import traceback
from pathlib import PurePath

from av.error import FFmpegError

from reelweave.curate.frames.source import SourceError
from reelweave.loader.errors import (
    MachineError,
    NoRoomError,
    ObjectError,
    RunError,
    UsageError,
    is_short,
    lacks_room,
)
from reelweave.loader.storage import UnansweredError
from reelweave.loader.storage.steady import is_fault

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of what is written to, which the next source would meet too."""


def fault_of(error: Exception) -> tuple[str, str]:
    """Return stage and reason of a source's failure, for any exception raised while working on it.

    The reason of an unexpected exception is its type and line alone: its text may hold an address with a
    password.

    Raises:
        MachineError: The disk, the network or this machine is at fault, and the source may be read later.
        RunError: The environment is at fault, and other sources would fail too.
        UsageError: The configuration is wrong.
    """
    if isinstance(error, SourceError):
        return "probe", str(error)
    if isinstance(error, UnansweredError):
        raise MachineError(str(error), lasts=True) from error
    if isinstance(error, ObjectError):
        return "open", str(error)
    if isinstance(error, RunError | UsageError):
        raise error
    if _is_machine_fault(error):
        raise _in_words(error) from error
    if isinstance(error, OSError):
        return "open", f"cannot be read: {error.strerror or type(error).__name__}"
    if isinstance(error, MemoryError):
        return "cut", "needs more memory than there is"
    return "cut", f"cannot be worked on: {type(error).__name__} at {_place(error)}; please report it"


def _is_machine_fault(error: Exception) -> bool:
    if isinstance(error, FFmpegError):
        # Its numbers are those of the system, but say how it understood the bytes; see `whole_reads`.
        return is_short(error)
    if isinstance(error, OSError):
        return is_fault(error) or isinstance(error, FileNotFoundError)
    return isinstance(error, MemoryError)


def _in_words(error: Exception) -> RunError:
    if isinstance(error, FileNotFoundError):
        return MachineError("disappeared before it was read", lasts=True)
    if not isinstance(error, OSError):
        return MachineError("this machine granted no more memory; look at ulimit -v and its container")
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        kind = NoRoomError if lacks_room(error) else RunError
        return kind(
            f"a source could not be worked on: {error.strerror}{where}; make room, then run the same command again"
        )
    return MachineError(f"could not be worked on: {error.strerror}{where}; make room")


def _place(error: Exception) -> str:
    """Return the innermost line of this package in a traceback."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").startswith("reelweave."):
            return f"{'/'.join(PurePath(frame.f_code.co_filename).parts[-2:])}:{line}"
    return "an unknown place"
