"""Timeouts of requests, against silent servers, dripping servers and endless responses."""

import io
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from urllib3.connection import HTTPConnection

from reelweave.loader.storage.config import StorageConfig

_PIECE = 256 << 10  # bytes per send, each with its own wait
_HEADER_BYTES = 1 << 20
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class RequestLimits:
    """Time and rate limits of one request.

    Attributes:
        window_s: seconds of waiting per window.
        window_bytes: minimum number of bytes per window.
        whole_s: maximum seconds of waiting for the request and its response.
    """

    window_s: float
    window_bytes: int
    whole_s: float

    @staticmethod
    def of(config: StorageConfig) -> "RequestLimits":
        """Return the limits of a storage configuration."""
        min_bytes = int(config.read_timeout_s * config.min_rate_kib_s * 1024)
        return RequestLimits(config.read_timeout_s, max(1, min_bytes), config.request_timeout_s)


class RequestClock:
    """Waiting time and transferred bytes of a request.

    Only time spent waiting for the server counts, so slow readers and stopped processes do not cause timeouts.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._whole_s = 0.0
        self.phase()

    def phase(self, most_bytes: int = _UNBOUNDED) -> None:
        """Begin a phase (sending, headers or body) with a new window and byte count."""
        self._left = most_bytes
        self._begin_window()

    def left_s(self) -> float:
        """Return the maximum seconds of the next wait.

        Raises:
            TimeoutError: the time is used up.
        """
        remaining_s = min(self._limits.window_s - self._window_s, self._limits.whole_s - self._whole_s)
        if remaining_s <= 0:
            raise TimeoutError("the server is too slow")
        return remaining_s

    def record_wait(self, waited_s: float, count: int) -> None:
        """Record a wait and the bytes it transferred.

        Raises:
            ConnectionError: the phase has too many bytes.
        """
        self._whole_s += waited_s
        self._window_s += waited_s
        self._window_bytes += count
        self._left -= count
        if self._left < 0:
            raise ConnectionError("the answer is too large")
        if self._window_bytes >= self._limits.window_bytes:
            self._begin_window()

    def _begin_window(self) -> None:
        self._window_s, self._window_bytes = 0.0, 0


class TimedConnection(HTTPConnection):
    """Connection with a clock per request, from its first sent to its last received byte."""

    limits: RequestLimits
    most_bytes = _UNBOUNDED
    clock: RequestClock

    def connect(self) -> None:
        """Connect, and time all transfers."""
        super().connect()
        self.sock = cast(socket.socket, _Watched(self.sock, self))

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        """Begin a request with a new clock."""
        self.clock = RequestClock(self.limits)
        super().putrequest(*args, **kwargs)

    def getresponse(self) -> Any:
        """Read status and headers."""
        self.clock.phase(_HEADER_BYTES)
        response = super().getresponse()
        self.clock.phase(self.most_bytes)
        return response


class _Watched:
    """Socket with waits limited by the request's clock."""

    def __init__(self, sock: socket.socket, connection: TimedConnection) -> None:
        self._sock = sock
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        view, sent = memoryview(data).cast("B"), 0
        while sent < len(view):
            sent += _timed_io(self._sock, self._connection.clock, self._sock.send, view[sent : sent + _PIECE])

    def makefile(self, mode: Literal["rb"], buffering: int = -1) -> io.IOBase:
        raw = _WatchedFile(self._sock, self._sock.makefile(mode, 0), self._connection.clock)
        return raw if buffering == 0 else io.BufferedReader(raw)


class _WatchedFile(io.RawIOBase):
    def __init__(self, sock: socket.socket, file: Any, clock: RequestClock) -> None:
        self._sock, self._file, self._clock = sock, file, clock
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._ended:
            # Line readers would read empty lines forever.
            raise ConnectionResetError("the server closed the connection")
        count = _timed_io(self._sock, self._clock, self._file.readinto, buffer)
        self._ended = count == 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _timed_io(sock: socket.socket, clock: RequestClock, move: Callable[[Any], int | None], data: Any) -> int:
    sock.settimeout(clock.left_s())
    began = time.monotonic()
    count = move(data) or 0
    clock.record_wait(time.monotonic() - began, count)
    return count
