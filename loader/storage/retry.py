"""When to try a request again, and after what pause."""

import logging
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError, LocationValueError, NameResolutionError, SSLError

from loader.storage.config import StorageConfig

T = TypeVar("T")


class StatusError(Exception):
    """A web server's refusal.

    Args:
        status: of HTTP.
        retry_after_s: pause the server asks for, seconds; 0 when it does not.
    """

    def __init__(self, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.retry_after_s = retry_after_s


FAULTS = (BotoCoreError, ClientError, HTTPError, StatusError, ConnectionError, TimeoutError)
"""Everything that may come out of a request for a reason outside this program."""

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
    "ConditionalRequestConflict",  # 409: another writer is at it; the next try sees its outcome
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",  # 400: the server saw no bytes for a while
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}

_log = logging.getLogger(__name__)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: 5xx, throttling, a broken or silent connection."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        return code in _TRANSIENT_CODES or status == 429 or (status >= 500 and status != 501)
    if isinstance(error, StatusError):
        return error.status in (408, 425, 429) or (error.status >= 500 and error.status not in (501, 505))
    return isinstance(error, _BROKEN) and not _lasts(error)


def _lasts(error: BaseException) -> bool:
    """Whether a broken connection will stay so: a wrong certificate, a host that does not exist."""
    if isinstance(error, SSLError):
        return isinstance(error.args[0], ssl.SSLCertVerificationError)
    if isinstance(error, NameResolutionError):
        cause = error.__cause__
        return isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
    return isinstance(error, LocationValueError)


def delays(config: StorageConfig, rng: random.Random) -> Iterator[float]:
    """Pauses between tries, in seconds: one fewer than tries.

    Exponential backoff with full jitter, ``uniform(0, min(cap, base * 2**n))`` (Brooker, "Exponential
    Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    for attempt in range(config.max_attempts - 1):
        yield rng.uniform(0, min(config.backoff_cap_s, config.backoff_base_s * 2**attempt))


def patience(config: StorageConfig) -> str:
    """Return how long `retry` goes on, for messages."""
    return (
        f"{config.max_attempts} tries in a row without progress, or {config.request_timeout_s:g} s"
        " (storage.request_timeout_s)"
    )


def retry(
    operation: Callable[[], T], config: StorageConfig, what: str, progress: Callable[[], int] = lambda: 0
) -> T:
    """Calls ``operation`` until it returns, an error is not transient, or delays or ``request_timeout_s`` run out.

    Args:
        operation: may be called again after it failed.
        config: number of tries and pauses.
        what: the URI it works on, for the log.
        progress: what has been achieved so far; the count of tries starts again whenever it grows.
    """
    rng = random.Random()  # noqa: S311 - jitter; seeded anew so that forked workers do not pause in step
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
            # The name of the error only: its text may hold the endpoint as somebody's environment spells it.
            _log.info("%s: %s, trying again in %.1f s", what, type(error).__name__, pause)
        time.sleep(pause)
