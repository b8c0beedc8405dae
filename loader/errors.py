"""The two errors a person sees; everything else is a bug and keeps its traceback."""


class UsageError(Exception):
    """A wrong call or configuration: one sentence that names the key, file or value and what to do.

    The command line prints it and exits with 2.
    """


class NoLengthError(UsageError, TypeError):
    """What was asked for its length has none; a TypeError, which Python and training loops take for that."""


class RunError(Exception):
    """The call was right and the work failed: names the file, shard or key that is wrong.

    The command line prints it and exits with 1.
    """


class ObjectError(RunError):
    """One object cannot be read for a reason of its own, which says nothing of other objects."""


def first_line(error: BaseException) -> str:
    """What an error says, short."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
