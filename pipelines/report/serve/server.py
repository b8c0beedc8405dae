"""Web server of a report behind a token: what its pages hold, and nothing else.

The token keeps other users of this machine out, too. Requests from pages of other hosts are refused by their ``Host``
header, which a page cannot set (DNS rebinding).
"""

import errno
import hmac
import ipaddress
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any, Protocol
from urllib.parse import unquote

from reelweave.loader.errors import RunError, UsageError
from reelweave.pipelines.report.clips.media import ClipBytes
from reelweave.pipelines.report.serve.hosts import host_name, is_loopback, names_loopback
from reelweave.pipelines.report.serve.waiting import WaitingConnections
from reelweave.pipelines.report.web.files import POLICY

_BLOCK_BYTES = 1 << 20
_HEADERS_S = 10.0
"""Seconds in which a new connection must send a request, in however many pieces."""
_IDLE_S = 60.0
_PAUSE_S = 0.1
_MOST_REQUESTS = 64
_ROOM = 8
"""Connections that are closed where no descriptor is free."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "jpg": "image/jpeg",
    "png": "image/png",
    "mp4": "video/mp4",
    "webm": "video/webm",
}
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Pages(Protocol):
    """All that a report has to show; asked by several threads at once."""

    def find(self, path: str) -> bytes | ClipBytes | None:
        """Return the content of a path, or where a part of it can be read; None for any other path.

        Args:
            path: path that the browser asked for, from anyone: "index.html" or "../../etc/passwd".

        Raises:
            RunError: it cannot be read now.
        """


class ReportServer(ThreadingHTTPServer):
    """HTTP server of one report.

    Args:
        pages: pages to serve.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        has_token: whether paths begin with a secret token, which whoever reaches the port must know.

    Attributes:
        token: first part of every path; "" for none.
        waiting: connections without a request that is answered.

    Raises:
        UsageError: the address cannot be listened on.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, pages: Pages, host: str, port: int, has_token: bool = True) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {host}, port {port}: {error}; give another --host or --port"
            ) from error
        self.pages, self.host = pages, host
        self.token = secrets.token_urlsafe(24) if has_token else ""
        self.places = BoundedSemaphore(_MOST_REQUESTS)
        self.waiting = WaitingConnections()

    @property
    def port(self) -> int:
        """Port that is listened on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Address of the report, with its token."""
        wildcard = self.host in ("0.0.0.0", "::")  # noqa: S104 - what the user asked for
        host = socket.gethostname() if wildcard else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{self.token and f'{self.token}/'}"

    def knows_host(self, header: str) -> bool:
        """Return whether a request's ``Host`` names this server."""
        if is_loopback(self.host):
            return names_loopback(header, self.port, self.host)
        name = host_name(header, self.port)
        if name is None:
            return False
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))  # no name that another could point elsewhere
        return name in (self.host.lower(), socket.gethostname().lower())

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; without a free descriptor, make room and wait, where accepting again would spin."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.waiting.close_oldest(_ROOM)
                time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if its request arrives in time."""
        self.waiting.add(request, _HEADERS_S)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, which so waits no more."""
        self.waiting.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections whose request does not arrive; called twice a second."""
        self.waiting.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers who went away."""


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = _IDLE_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "reelweave", ""

    def do_GET(self) -> None:
        """Answer with a file or a part of a clip."""
        path = self._authorized_path()
        if path is None:
            return
        waiting = self.server.waiting
        waiting.remove(self.connection)
        with self.server.places:
            self._answer(path)
        waiting.add(self.connection, _IDLE_S)

    do_HEAD = do_GET

    def _refuse_method(self) -> None:
        self.close_connection = True  # what it sends is not read
        self._fail(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing: addresses hold the token."""

    def _authorized_path(self) -> str | None:
        """Return the path of a request for this server with its token; refuse any other, and return None."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.knows_host(hosts[0]):
            self._fail(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        path = self._path()
        if path is None:
            self._fail(HTTPStatus.FORBIDDEN)
        return path

    def _answer(self, path: str) -> None:
        try:
            content = self.server.pages.find(path)
        except (RunError, UsageError):
            content = None
        if isinstance(content, bytes):
            self._send(_TYPES.get(path.rpartition(".")[2], "application/octet-stream"), content)
        elif content is not None and content.size:
            self._send_clip(content)
        else:
            self._fail(HTTPStatus.NOT_FOUND)

    def _path(self) -> str | None:
        """Return the path behind the token, exactly as a file is named; None without the token."""
        path = self.path.partition("?")[0].removeprefix("/")
        if token := self.server.token:
            given_token, _, path = path.partition("/")
            if not hmac.compare_digest(given_token.encode(), token.encode()):
                return None
        return unquote(path) or "index.html"

    def _send(self, kind: str, content: bytes) -> None:
        self._begin(HTTPStatus.OK, ("Content-Type", kind), ("Content-Length", str(len(content))))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_clip(self, clip: ClipBytes) -> None:
        span = _span(self.headers.get("Range"), clip.size)
        if span is None:
            self._fail(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, ("Content-Range", f"bytes */{clip.size}"))
            return
        start, end, partial = span
        self._begin(
            HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK,
            ("Content-Type", _TYPES.get(clip.suffix, "application/octet-stream")),
            ("Content-Length", str(end - start)),
            ("Accept-Ranges", "bytes"),
            *([("Content-Range", f"bytes {start}-{end - 1}/{clip.size}")] if partial else []),
        )
        if self.command == "HEAD":
            return
        try:
            for block in _blocks(clip, start, end):
                self.wfile.write(block)
        except (RunError, FileNotFoundError):
            self.close_connection = True  # shorter than promised, which the browser notices

    def _begin(self, status: HTTPStatus, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*_HEADERS.items(), *headers):
            self.send_header(name, value)
        self.end_headers()

    def _fail(self, status: HTTPStatus, *headers: tuple[str, str]) -> None:
        text = f"{status.phrase}\n".encode()
        self._begin(status, ("Content-Type", "text/plain"), ("Content-Length", str(len(text))), *headers)
        if self.command != "HEAD":
            self.wfile.write(text)


def _span(range_header: str | None, size: int) -> tuple[int, int, bool] | None:
    """Return first byte, end, and whether it is a part; None where a range lies outside the file.

    Headers that are no single range are ignored, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(range_header.strip()) if range_header else None
    if match is None or match[1] == match[2] == "":
        return 0, size, False
    if not match[1]:  # the last bytes
        last = min(int(match[2]), size)
        return (size - last, size, True) if last else None
    start = int(match[1])
    end = min(int(match[2]) + 1, size) if match[2] else size
    if match[2] and int(match[2]) < start:
        return 0, size, False
    return (start, end, True) if start < size else None


def _blocks(clip: ClipBytes, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a clip in blocks.

    Raises:
        RunError: the file ends before.
    """
    for at in range(start, end, _BLOCK_BYTES):
        size = min(_BLOCK_BYTES, end - at)
        block = clip.storage.read(clip.path, clip.offset + at, size)
        if len(block) != size:
            raise RunError(f"{clip.storage.uri(clip.path)} is cut off")
        yield block
