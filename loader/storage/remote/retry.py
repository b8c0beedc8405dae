"""Retries with exponential backoff, and the classification of transient errors."""

import logging
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError, LocationValueError, NameResolutionError, SSLError

from reelweave.loader.storage.config import StorageConfig

T = TypeVar("T")


class StatusError(Exception):
    """Error status of a web server.

    Args:
        status: HTTP status.
        retry_after_s: pause requested by the server in seconds; 0 if none.
    """

    def __init__(self, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.retry_after_s = retry_after_s

    @staticmethod
    def of(status: int, headers: Mapping[str, str]) -> "StatusError":
        """Return the error of an answer, with the pause that its headers request."""
        wait = headers.get("Retry-After", "")
        return StatusError(status, float(wait) if wait.isascii() and wait.isdigit() else 0.0)


FAULTS = (BotoCoreError, ClientError, HTTPError, StatusError, ConnectionError, TimeoutError)
"""Errors of requests with causes outside this program."""

_BROKEN = (
    HTTPClientError,
    BotoConnectionError,
    IncompleteReadError,
    HTTPError,
    ConnectionError,
    TimeoutError,
)
_TRANSIENT_CODES = {
    "BandwidthLimitExceeded",
    "ConditionalRequestConflict",  # 409: concurrent writer; the next attempt sees the outcome
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",  # 400: the server received no bytes for a while
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}

_log = logging.getLogger(__name__)


@dataclass
class RetryCount:
    """Number of requests that were sent again, so far."""

    retries: int = 0


_counted_in: ContextVar[RetryCount | None] = ContextVar("counted_in", default=None)


@contextmanager
def counted_retries() -> Iterator[RetryCount]:
    """Count the retries of this thread's requests within the block."""
    count = RetryCount()
    outer = _counted_in.set(count)
    try:
        yield count
    finally:
        _counted_in.reset(outer)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later: 5xx, throttling, broken or silent connections."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        return code in _TRANSIENT_CODES or status == 429 or (status >= 500 and status != 501)
    if isinstance(error, StatusError):
        return error.status in (408, 425, 429) or (error.status >= 500 and error.status not in (501, 505))
    return isinstance(error, _BROKEN) and not _lasts(error)


def _lasts(error: BaseException) -> bool:
    """Return whether a connection error is permanent: an invalid certificate, or an unknown host."""
    if isinstance(error, SSLError):
        return isinstance(error.args[0], ssl.SSLCertVerificationError)
    if isinstance(error, NameResolutionError):
        cause = error.__cause__
        return isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
    return isinstance(error, LocationValueError)


def delays(config: StorageConfig, rng: random.Random) -> Iterator[float]:
    """Yield pauses between attempts in seconds, one fewer than attempts.

    Exponential backoff with full jitter, ``uniform(0, min(cap, base * 2**n))`` (Brooker, "Exponential
    Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    for attempt in range(config.max_attempts - 1):
        yield rng.uniform(0, min(config.backoff_cap_s, config.backoff_base_s * 2**attempt))


def patience(config: StorageConfig) -> str:
    """Describe the limits of `retry`, for messages."""
    return (
        f"{config.max_attempts} tries in a row without progress, or {config.request_timeout_s:g} s"
        " (storage.request_timeout_s)"
    )


def retry(
    operation: Callable[[], T], config: StorageConfig, what: str, progress: Callable[[], int] = lambda: 0
) -> T:
    """Call ``operation`` until it returns, fails permanently, or exhausts its attempts or ``request_timeout_s``.

    Args:
        operation: function to call, repeatable after a failure.
        config: number of attempts, and pauses.
        what: URI for the log.
        progress: function that returns a measure of progress; the attempts start anew whenever it grows.
    """
    rng = random.Random()  # noqa: S311 - jitter; seeded per call so that forked workers do not pause in step
    pauses, reached = delays(config, rng), progress()
    until = time.monotonic() + config.request_timeout_s
    while True:
        try:
            return operation()
        except FAULTS as error:
            if not is_transient(error):
                raise
            if progress() > reached:
                pauses, reached = delays(config, rng), progress()
            pause = next(pauses, None)
            if pause is None or time.monotonic() >= until:
                raise
            if isinstance(error, StatusError):
                pause = max(pause, min(error.retry_after_s, config.backoff_cap_s))
            # Only the error's type: its text may contain the endpoint as the environment spells it.
            _log.info("%s: %s, trying again in %.1f s", what, type(error).__name__, pause)
            if (count := _counted_in.get()) is not None:
                count.retries += 1
        time.sleep(pause)
