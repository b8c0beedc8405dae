"""Error boundary of one source: classification of its errors, and their names in the accounting."""

import errno
import traceback
from pathlib import PurePath

from curate.frames.source import SourceError
from loader.errors import ObjectError, RunError, UsageError

_ROOMS = frozenset(("curate", "loader"))
_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of this process or machine, which the next source would meet too."""


def fault_of(error: Exception) -> tuple[str, str]:
    """Return stage and reason of a source's failure, for any exception raised while working on it.

    The reason of an unexpected exception is its type and line alone: its text may hold an address with a
    password.

    Raises:
        RunError: The environment is at fault, and other sources would fail too.
        UsageError: The configuration is wrong.
    """
    if isinstance(error, SourceError):
        return "probe", str(error)
    if isinstance(error, FileNotFoundError):
        return "open", "disappeared before it was read"
    if isinstance(error, ObjectError):
        denied = isinstance(error.__cause__, PermissionError)
        return "open", "may not be read (permission denied)" if denied else str(error)
    if isinstance(error, RunError | UsageError):
        raise error
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        where = f" ({error.filename})" if error.filename else ""
        raise RunError(
            f"a source could not be worked on: {error.strerror}{where}; make room, then run the same command again"
        ) from error
    if isinstance(error, OSError):
        return "open", f"cannot be read: {error.strerror or type(error).__name__}"
    if isinstance(error, MemoryError):
        return "cut", "needs more memory than there is"
    return "cut", f"cannot be worked on: {type(error).__name__} at {_place(error)}; please report it"


def _place(error: Exception) -> str:
    """Return the innermost line of this package in a traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = PurePath(frame.filename)
        if not _ROOMS.isdisjoint(path.parts) and "site-packages" not in path.parts:
            return f"{'/'.join(path.parts[-2:])}:{frame.lineno}"
    return "an unknown place"
