"""Attacks by addresses: entries of lists and redirects, counted.

python -m tests.bench.hostile_web --seed 1 --count 5000

Every address stands in a list on a web server, in a list on this machine and in a redirect. Look-ups and connections
are those of the test: no packet leaves the machine. Lost is an attack that ends in a traceback, hangs, reads a file
that is not to be read, connects to an address that is not public, or shows a password.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig
from tests.hostile_addresses import hostile_addresses
from tests.httpserver import WebServer, web_server
from tests.network import Network, pretend

PUBLIC, S3 = "1.2.3.4", "1.2.3.5"
PRIVATE = b"this file is not to be read"
FILM = b"film"
CONFIG = StorageConfig(
    endpoint_url="http://s3.example",
    region="us-east-1",
    max_attempts=1,
    read_timeout_s=2,
    connect_timeout_s=2,
)
_LONGEST_S = 10.0
_ADDRESS = re.compile(r"(?!file|s3)[a-z]+://[^/]*secret@", re.IGNORECASE)


@contextmanager
def attacked(folder: Path) -> Iterator[tuple[WebServer, Network, str]]:
    """Serve films.example at a public address; a private file lies in the folder, and two names lead inside."""
    secret = folder / "private.mp4"
    secret.write_bytes(PRIVATE)
    with web_server() as web, pytest.MonkeyPatch.context() as patch:
        names: dict[str, Any] = {
            "films.example": PUBLIC,
            "s3.example": S3,
            "inner.example": "10.0.0.7",
            "both.example": ["169.254.169.254", "::1"],
        }
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(variable, "test")
        yield web, pretend(patch, names, {PUBLIC: web.url, S3: web.url}), str(secret)


def attack(kind: str, address: str, web: WebServer, network: Network, folder: Path) -> str:
    """Return how one attack was lost; "" for one that was survived."""
    before, began = len(network.connected), time.monotonic()
    entry = json.dumps({"path": address}) + "\n"
    web.files = {"/a.mp4": FILM}
    source = "http://films.example/l.jsonl"
    if kind == "local list":
        source = str(folder / "l.jsonl")
        (folder / "l.jsonl").write_text(entry)
    else:
        web.files["/l.jsonl"] = entry.encode() if kind == "web list" else b'{"path": "moved.mp4"}\n'

    def redirect(handler: Any) -> bool:
        if kind != "redirect" or handler.path != "/moved.mp4":
            return False
        location = address.encode("utf-8").decode("latin-1").replace("\r", "").replace("\n", "")
        handler.answer(302, b"", {"Location": location})
        return True

    web.script = redirect
    try:
        sources = list_sources([source], CONFIG)
    except (UsageError, RunError):  # an empty entry makes a list that is refused
        sources = []
    except Exception as error:  # noqa: BLE001 - that is what is counted
        return f"{type(error).__name__}: {error}"
    if time.monotonic() - began > _LONGEST_S:
        return "hang"
    if kind != "local list" and any(_private(one) for one in sources):
        return "read a file"
    if set(network.connected[before:]) - {PUBLIC, S3 if kind == "local list" else PUBLIC}:
        return f"connected to {network.connected[before:]}"
    return "showed a password" if _ADDRESS.match(address) and "secret" in repr(sources) else ""


def _private(source: SourceRef) -> bool:
    return source.fault is None and source.size == len(PRIVATE)


def run(seed: int, count: int, note: Callable[[str], None] = lambda _: None) -> dict[str, Counter[str]]:
    """Try ``count`` addresses in every kind of place; how they ended by kind, "" for survived."""
    ended: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name, attacked(Path(name)) as (web, network, secret):
        for kind in ("web list", "local list", "redirect"):
            ended[kind] = Counter()
            for address in hostile_addresses(seed, count, secret):
                lost = attack(kind, address, web, network, Path(name))
                ended[kind][lost] += 1
                if lost:
                    note(f"{kind}: {address[:200]!r}: {lost[:200]}")
    return ended


def main() -> None:
    """Try, and print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    began = time.process_time()
    for kind, ended in run(options.seed, options.count, lambda text: print(text, file=sys.stderr)).items():
        tried = ended.total()
        print(f"| addresses, {kind} | {tried:,} | {ended['']:,} | {tried - ended['']:,} |")
    print(f"{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
