"""A real S3 server on loopback (moto over HTTP), and a proxy that breaks its answers on demand.

with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
    make_bucket(endpoint, "clips")
    proxy.answer(503, "SlowDown", match="^GET", times=2)
    storage = open_storage("s3://clips/set", StorageConfig(endpoint_url=proxy.url))
"""

import fcntl
import http.client
import os
import re
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

_HOP_BY_HOP = {"connection", "expect", "keep-alive", "transfer-encoding"}
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@cache
def _endpoint() -> str:
    """Start the one server of this process, which ends with it; return its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return "http://{}:{}".format(*server.get_host_and_port())


@contextmanager
def s3_server() -> Iterator[str]:
    """Set credentials for the S3 server of this process in the environment and yield its endpoint URL.

    The server starts empty. Its last act for each caller is to forget all objects, also those of other callers.
    """
    credentials = {
        "AWS_ACCESS_KEY_ID": "test-key-id",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    endpoint = _endpoint()
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    try:
        with patch.dict(os.environ, others | credentials, clear=True):
            yield endpoint
    finally:
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()


def s3_client(endpoint: str) -> Any:
    """A plain boto3 client, to look at the server from outside of our code."""
    import boto3
    import botocore.session

    session = botocore.session.get_session()
    session.register_component("data_loader", _descriptions())
    return boto3.session.Session(botocore_session=session).client("s3", endpoint_url=endpoint)


@cache
def _descriptions() -> Any:
    """What botocore knows of services: to read it takes a tenth of a second of every client."""
    from botocore.loaders import create_loader

    return create_loader()


def make_bucket(endpoint: str, name: str) -> None:
    """Create a bucket by a bare request: a client would read its description of S3 first, for a tenth of a second."""
    urlopen(Request(f"{endpoint}/{name}", method="PUT")).close()


def put_directly(bucket: str, key: str) -> None:
    """Put an empty object where the server of this process keeps them: a request takes 5 ms of a processor."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, b"")


@dataclass
class Fault:
    """What happens to the next ``times`` requests that match."""

    match: str
    times: int
    answer: tuple[int, str] | None = None
    cut_after: int | None = None
    shorten_to: int | None = None
    reset: bool = False
    lose: bool = False
    held: threading.Event | None = None
    flip: int | None = None
    then: Callable[[], None] | None = None


@dataclass
class Exchange:
    """One request as the proxy saw it; ``sent`` counts the bytes of the body that were answered.

    ``named`` is the body of a request to delete several objects.
    """

    line: str
    headers: dict[str, str]
    sent: int = 0
    named: bytes = b""


class FaultyProxy:
    """An HTTP proxy in front of ``upstream`` that misbehaves as scripted; faults apply in the given order.

    ``match`` is a regular expression searched in "METHOD /path?query". ``then`` runs when the fault has
    happened, before the client can see it. ``exchanges`` holds every request so far. ``ignored`` headers and
    ``unasked`` parts of a query are not handed on, as by a server that does not know them. ``dropped`` headers of
    answers are lost, and ``etags`` replaces those of objects, by their paths.
    """

    def __init__(self, upstream: str, ignored: Collection[str] = (), unasked: Collection[str] = ()) -> None:
        self.ignored = {*_HOP_BY_HOP, *ignored}
        self.unasked = unasked
        self.dropped: Collection[str] = ()
        self.etags: dict[str, str] = {}
        self.exchanges: list[Exchange] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self, urlsplit(upstream).netloc))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, status: int, code: str, match: str = "", times: int = 1) -> None:
        """Answers with an S3 error and does not ask the server."""
        self._faults.append(Fault(match, times, answer=(status, code)))

    def truncate(
        self, after_bytes: int, match: str = "", times: int = 1, then: Callable[[], None] | None = None
    ) -> None:
        """Closes the connection in good order after so many bytes of the body."""
        self._faults.append(Fault(match, times, cut_after=after_bytes, then=then))

    def reset(
        self, after_bytes: int, match: str = "", times: int = 1, then: Callable[[], None] | None = None
    ) -> None:
        """Resets the connection (TCP RST) after so many bytes of the body."""
        self._faults.append(Fault(match, times, cut_after=after_bytes, reset=True, then=then))

    def shorten(self, to_bytes: int, match: str = "", times: int = 1) -> None:
        """Gives the first so many bytes of the range that was asked for, and says so, as RFC 9110 15.3.7 allows."""
        self._faults.append(Fault(match, times, shorten_to=to_bytes))

    def flip(self, at: int, match: str = "", times: int = 1) -> None:
        """Gives the byte of a body at this place with other bits, as a bad cable does where nobody encrypts."""
        self._faults.append(Fault(match, times, flip=at))

    def lose_answer(self, match: str = "", times: int = 1) -> None:
        """Lets the server do the work, then resets the connection without a word."""
        self._faults.append(Fault(match, times, lose=True, reset=True))

    def hold(self, match: str = "", times: int = 1) -> threading.Event:
        """Says nothing until the event that it returns is set, and then answers as the server does."""
        held = threading.Event()
        self._faults.append(Fault(match, times, held=held))
        return held

    def lines(self, match: str = "") -> list[str]:
        """ "METHOD /path?query" of the requests so far that match."""
        return [exchange.line for exchange in self.exchanges if re.search(match, exchange.line)]

    def bytes_sent(self, match: str = "") -> int:
        """Bytes of bodies answered to the requests that match."""
        return sum(exchange.sent for exchange in self.exchanges if re.search(match, exchange.line))

    def next_fault(self, line: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.times and re.search(fault.match, line):
                    fault.times -= 1
                    return fault
        return None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request: Any) -> None:
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER):
            request.close()  # lingering for 0 s: a reset; the usual shutdown would first end in good order
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up too


def _handler(proxy: FaultyProxy, upstream: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

        def relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            named = body if self.command == "POST" and self.path.endswith("?delete") else b""
            exchange = Exchange(line, dict(self.headers), named=named)
            proxy.exchanges.append(exchange)
            fault = proxy.next_fault(line) or Fault("", 0)
            if fault.held:
                fault.held.wait()
            if fault.answer:
                status, code = fault.answer
                headers = {"Content-Type": "application/xml"}
                content = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
            else:
                status, headers, content = self.forward(body)
            if fault.flip is not None:
                at = fault.flip
                content = content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
            if fault.shorten_to is not None and (given := _RANGE.fullmatch(headers.get("Content-Range", ""))):
                content = content[: fault.shorten_to]
                end = int(given[1]) + len(content) - 1
                headers["Content-Range"] = f"bytes {given[1]}-{end}/{given[2]}"
                headers["Content-Length"] = str(len(content))
            if not fault.lose:
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    exchange.sent = len(content[: fault.cut_after])
                    self.wfile.write(content[: fault.cut_after])
            if fault.then:
                fault.then()
            if fault.reset:
                self.wait_until_received()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if fault.reset or fault.cut_after is not None:
                self.close_connection = True

        def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in proxy.ignored
            }
            connection = http.client.HTTPConnection(upstream)
            path, _, query = self.path.partition("?")
            asked = [part for part in query.split("&") if part.split("=")[0] not in proxy.unasked]
            if path in proxy.etags:
                headers.pop("If-Match", None)  # the server knows its own
            connection.request(self.command, "?".join((path, "&".join(asked))), body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            kept = {name.title(): value for name, value in answer.getheaders()}
            if path in proxy.etags:
                kept["Etag"] = proxy.etags[path]
            lost = {*_HOP_BY_HOP, *proxy.dropped}
            return answer.status, {n: v for n, v in kept.items() if n.lower() not in lost}, content

        def wait_until_received(self) -> None:
            """A reset throws away what is still on its way."""
            while struct.unpack("i", fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4))[0]:
                time.sleep(0.001)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay

    return Handler
