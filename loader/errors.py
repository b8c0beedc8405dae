"""Errors for users; any other exception is a bug and keeps its traceback."""

import errno
import mmap

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_HANDLES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
_ASKED_BYTES = 256 << 20


class UsageError(Exception):
    """Wrong call or configuration; the message names the key, file or value and the remedy.

    The command line prints it and exits with 2.
    """


class NoLengthError(UsageError, TypeError):
    """Length of an object without one; a TypeError, which Python and training loops expect in that case."""


class NoAttributeError(UsageError, AttributeError):
    """Attribute that an object lacks on purpose; an AttributeError, which `hasattr` and training loops expect."""


class WrongTypeError(UsageError, TypeError):
    """Argument of a wrong type; a TypeError, which Python programs expect in that case."""


class StateError(UsageError):
    """State that a stream cannot go on from.

    Attributes:
        cause: why, without the remedy, which is another one where the state is part of a checkpoint.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}, or start without a state")
        self.cause = cause


class RunError(Exception):
    """Failure of a correct call; the message names the file, shard or key at fault.

    The command line prints it and exits with 1.
    """


class ObjectError(RunError):
    """Failure to read one object, for a reason that does not concern other objects."""


class MachineError(RunError):
    """Failure of a disk, a network or this machine while something was read, which says nothing of what was read.

    The command line prints it and exits with 75 (EX_TEMPFAIL): the same command goes on later.

    Attributes:
        lasts: True if there is no use in another try right away.
    """

    def __init__(self, message: str, lasts: bool = False) -> None:
        super().__init__(message)
        self.lasts = lasts

    def __reduce__(self) -> tuple[type["MachineError"], tuple[str, bool]]:
        return MachineError, (str(self), self.lasts)


class NoRoomError(RunError):
    """Failure to write, on a full disk or at a quota; other work would meet it too, so it is not tried again.

    The command line prints it and exits with 75 (EX_TEMPFAIL): the same command goes on once there is room.
    """


def lacks_room(error: BaseException) -> bool:
    """Return whether an error says that a file cannot grow: the disk is full, or a quota or limit is reached."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def first_line(error: BaseException) -> str:
    """Return an error's message as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."


def is_short(error: BaseException) -> bool:
    """Return whether an error comes from memory or file handles that this machine does not grant, not from the data.

    Damaged data may ask for petabytes, which fails in the same way. So after a failed allocation the machine is asked
    for 256 MiB of addresses, which are not touched: where it grants them, the data asked for too much.
    """
    if isinstance(error, MemoryError):
        return not _grants(_ASKED_BYTES)
    return isinstance(error, OSError) and error.errno in _HANDLES


def refuse_shortage(error: BaseException, doing: str = "go on") -> None:
    """Raise a `MachineError` where an error `is_short`.

    Args:
        error: error of a library.
        doing: what needs memory, as a verb with its object.
    """
    if is_short(error):
        raise MachineError(
            f"this machine grants no more memory or file handles to {doing}; look at ulimit -v, ulimit -n and its"
            " container"
        ) from error


def _grants(size: int) -> bool:
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True
