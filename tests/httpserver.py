"""A real web server on loopback that behaves, or misbehaves, as scripted.

with web_server() as server:
    server.files["/a.mp4"] = data
    storage, name = open_object(f"{server.url}/a.mp4")
"""

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Request:
    """One request as the server saw it; ``sent`` counts the bytes of the body that were answered."""

    line: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class WebServer:
    """What the server serves and how.

    Attributes:
        url: of its root.
        files: path, decoded and without query -> content.
        ranges: whether byte ranges are given.
        etags: whether answers carry an ETag.
        lengths: whether answers without range say their length; else the body is chunked.
        script: called with the handler before it answers a GET; True when it has answered itself.
        closing: whether each answer ends its connection.
        cut_after: bytes of the body after which the connection breaks, one entry per answer.
        requests: all so far.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etags: bool = True
    lengths: bool = True
    closing: bool = False
    script: Callable[[Any], bool] = lambda handler: False
    cut_after: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def bytes_sent(self) -> int:
        """Of all bodies."""
        return sum(request.sent for request in self.requests)


@contextmanager
def web_server() -> Iterator[WebServer]:
    """Starts the server, ends it on exit."""
    served = WebServer()
    server = _Server(("127.0.0.1", 0), _handler(served))
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up too


def _handler(served: WebServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers
        request_seen: Request

        def do_GET(self) -> None:
            self.request_seen = Request(
                f"{self.command} {self.path}", {name.title(): value for name, value in self.headers.items()}
            )
            served.requests.append(self.request_seen)
            if served.script(self):
                return
            content = served.files.get(unquote(self.path.partition("?")[0]))
            if content is None:
                self.answer(404, b"no such page")
                return
            etag = f'"{md5(content).hexdigest()}"' if served.etags else ""
            headers = {"ETag": etag} if etag else {}
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            fresh = self.headers.get("If-Range") in (None, etag)
            if not (asked and served.ranges and fresh):
                self.answer(200, content, headers, chunked=not served.lengths)
                return
            first = int(asked[1])
            last = min(int(asked[2] or len(content)), len(content) - 1)
            if first > last:
                self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(206, content[first : last + 1], headers)

        def answer(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, chunked: bool = False
        ) -> None:
            self.request_seen.status = status
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(body)))
            if served.closing:
                self.send_header("Connection", "close")
            self.end_headers()
            cut = served.cut_after.pop(0) if served.cut_after and len(body) > 1 else None
            for start in range(0, len(body[:cut]), 1 << 16):
                piece = body[:cut][start : start + (1 << 16)]
                self.request_seen.sent += len(piece)  # before the client can look
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if cut is not None:
                self.close_connection = True
            elif chunked:
                self.wfile.write(b"0\r\n\r\n")

        def reset(self) -> None:
            """Resets the connection without a word."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def drip(self, size: int, pause_s: float) -> None:
            """Sends one byte of a body after the other."""
            self.trickle(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, [b"x"] * size, pause_s)

        def trickle(self, at_once: bytes, pieces: Iterable[bytes], pause_s: float) -> None:
            """Sends what an answer begins with at once and the rest piece by piece, then hangs up."""
            self.close_connection = True
            self.wfile.write(at_once)
            for piece in pieces:
                time.sleep(pause_s)
                self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            pass

        do_HEAD = do_PUT = do_GET

    return Handler
