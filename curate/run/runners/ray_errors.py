"""Errors of Ray as `RunError`, in words for people."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reelweave.loader.errors import MachineError, NoRoomError, ObjectError, RunError, UsageError, first_line


@contextmanager
def in_words(ray: Any, silence_s: float) -> Iterator[None]:
    """Turn what Ray raises into a `RunError`."""
    try:
        yield
    except ray.data.exceptions.ExecutionTimeoutError as error:
        raise RunError(
            f"stopped: no worker gave a result for {silence_s:.0f} s; look whether the cluster still has nodes"
            " with free processors and GPUs, then run the same command again to go on"
        ) from error
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        # Before the errors below, since what a stage raised is of both kinds, with a traceback for a message.
        kind, cause = _root_cause(ray, error)
        raise kind(f"stopped: {cause}; run the same command again to go on") from error
    except (UsageError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"stopped: Ray itself failed with {describe_error(error)}; its logs are in {_logs(ray)};"
            " run the same command again to go on"
        ) from error


def describe_error(error: BaseException) -> str:
    """Return type and first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


def _logs(ray: Any) -> str:
    """Return the folder of Ray's logs, the same on every node."""
    context = ray.get_runtime_context()
    return f"{context.get_temp_dir()}/{context.get_session_name()}/logs"


_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def _root_cause(ray: Any, error: BaseException) -> tuple[type[RunError | UsageError], str]:
    """Return what a stage raised: Ray keeps the text of its traceback, with its own advice around."""
    errors = ray.exceptions
    if isinstance(error, errors.OutOfMemoryError | errors.WorkerCrashedError | errors.NodeDiedError):
        return MachineError, describe_error(error)
    raised = _RAISED.findall(str(error))
    name, message = raised[0] if raised else (type(error).__name__, "see the logs of Ray")
    for kind in (RunError, ObjectError, MachineError, NoRoomError, UsageError):
        if name == kind.__name__:
            return kind, str(message)
    return RunError, f"{name}: {message}"
