"""A real web server on loopback that answers as OpenAI-style servers of vision-language models do, as scripted."""

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class ChatServer:
    """What the server answers.

    Attributes:
        url: Its address, up to /v1.
        models: Names that it serves.
        caption: Caption of pictures, each [h, w, 3]; bytes are the whole body of the answer.
        reply: Answer to a whole question, where it decides instead of `caption`.
        fails: Statuses of the next answers, with their bodies; 0 breaks the connection.
        key: API key that it asks for.
        pause_s: Seconds before each answer.
        bodies: Questions so far.
        most: Largest number of questions in flight at once.
        now: Questions in flight.
        lists: Status of the list of models.
    """

    url: str = ""
    models: tuple[str, ...] = ("teller",)
    caption: Callable[[list[np.ndarray[Any, Any]]], str | bytes] = lambda _: "A red kite flies over the sea."
    reply: Callable[[dict[str, Any]], str | bytes] | None = None
    fails: list[tuple[int, bytes]] = field(default_factory=list)
    key: str | None = None
    pause_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    now: int = 0
    lists: int = 200


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Start the server; end it on exit."""
    served = ChatServer()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self._allowed():
                self._answer(served.lists, {"object": "list", "data": [{"id": one} for one in served.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                served.bodies.append(body)
                served.now += 1
                served.most = max(served.most, served.now)
                failure = served.fails.pop(0) if served.fails else None
            time.sleep(served.pause_s)
            try:
                if failure is not None:
                    self._fail(*failure)
                elif self._allowed():
                    caption = served.reply(body) if served.reply else served.caption(pictures(body))
                    if isinstance(caption, bytes):
                        self._send(200, caption)
                    else:
                        self._answer(200, _completion(body, caption))
            finally:
                with lock:
                    served.now -= 1

        def _allowed(self) -> bool:
            allowed = served.key is None or self.headers.get("Authorization") == f"Bearer {served.key}"
            if not allowed:
                self._answer(401, {"error": {"message": "wrong key"}})
            return allowed

        def _fail(self, status: int, content: bytes) -> None:
            if status:
                self._send(status, content)
            else:
                self.close_connection = True
                self.connection.close()

        def _answer(self, status: int, content: Mapping[str, Any]) -> None:
            self._send(status, json.dumps(content).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = _Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def pictures(body: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the pictures of a question, decoded."""
    parts = body["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert all(url.startswith("data:image/jpeg;base64,") for url in urls)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))) for url in urls]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None: ...


def _completion(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    words = text.split()[: body["max_tokens"]]
    whole = len(words) == len(text.split())
    return {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " ".join(words)},
                "finish_reason": "stop" if whole else "length",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": len(words)},
    }
