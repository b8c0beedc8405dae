"""Connections that wait for a request: bounded in number and in time."""

import resource
import socket
import time
from contextlib import suppress
from threading import Lock

_MAX_WAITING = 128
_DESCRIPTORS_SHARE = 4


class WaitingConnections:
    """Connections whose request has not arrived, or is not one that is answered.

    A new one takes the room of the one that waits the longest. So whoever drips headers holds no connection of a
    reader, whose request arrives at once.

    Args:
        limit: maximum number of connections; None: 128, and at most a quarter of this process's descriptors.
    """

    def __init__(self, limit: int | None = None) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit or max(1, min(_MAX_WAITING, descriptors // _DESCRIPTORS_SHARE))
        self._deadlines: dict[socket.socket, float] = {}  # the longest waiting first
        self._lock = Lock()

    def add(self, connection: socket.socket, seconds: float) -> None:
        """Let a connection wait for this long; close the oldest ones beyond the limit."""
        with self._lock:
            self._deadlines.pop(connection, None)
            self._close(list(self._deadlines)[: len(self._deadlines) - self._limit + 1])
            self._deadlines[connection] = time.monotonic() + seconds

    def remove(self, connection: socket.socket) -> None:
        """Let a connection wait no more, since it is answered or closed."""
        with self._lock:
            self._deadlines.pop(connection, None)

    def close_overdue(self) -> None:
        """Close the connections that have waited too long."""
        now = time.monotonic()
        with self._lock:
            self._close([connection for connection, end in self._deadlines.items() if end < now])

    def close_oldest(self, count: int) -> None:
        """Close the connections that wait the longest."""
        with self._lock:
            self._close(list(self._deadlines)[:count])

    def _close(self, connections: list[socket.socket]) -> None:
        for connection in connections:
            del self._deadlines[connection]
            # Its thread reads an end, and closes the descriptor.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
