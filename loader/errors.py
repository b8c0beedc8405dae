"""Errors for users; any other exception is a bug and keeps its traceback."""


class UsageError(Exception):
    """Wrong call or configuration; the message names the key, file or value and the remedy.

    The command line prints it and exits with 2.
    """


class NoLengthError(UsageError, TypeError):
    """Length of an object without one; a TypeError, which Python and training loops expect in that case."""


class RunError(Exception):
    """Failure of a correct call; the message names the file, shard or key at fault.

    The command line prints it and exits with 1.
    """


class ObjectError(RunError):
    """Failure to read one object, for a reason that does not concern other objects."""


def first_line(error: BaseException) -> str:
    """Return an error's message as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
