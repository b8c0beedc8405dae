"""A second S3 server, written by others than moto's authors, in its place: nanio (PyPI), which checks signatures.

    python -m pytest -p tests.second_s3 tests/loader/storage/test_storage.py tests/loader/storage/test_storage_s3.py

As a plugin it replaces the server of `tests.s3server` before any test imports it.
"""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from tests import s3server
from tests.ports import reserved_port

KEY_ID, SECRET = "test-key-id", "test-secret"
START_S = 60.0
PROGRAM = Path(sys.executable).with_name("nanio")
"""Beside the interpreter, whose folder need not be on the PATH."""


def pytest_configure() -> None:
    """Put nanio in the place of moto."""
    s3server.s3_server = server  # type: ignore[assignment]
    s3server.make_bucket = make_bucket
    s3server.put_directly = put_directly


@cache
def _started() -> tuple[str, Path]:
    """Start the one server of this process, which ends with it; return its URL and where it keeps objects."""
    assert PROGRAM.exists(), f"no {PROGRAM}: pip install nanio"
    holding = ExitStack()  # until this process ends: the port is the server's alone
    port = holding.enter_context(reserved_port())
    folder = tempfile.TemporaryDirectory(prefix="reelweave-nanio-")
    process = subprocess.Popen(
        [str(PROGRAM), "serve", "--data-dir", folder.name, "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"NANIO_ACCESS_KEY": KEY_ID, "NANIO_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(holding.close)
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    until = time.monotonic() + START_S
    while True:
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return f"http://127.0.0.1:{port}", Path(folder.name)
        assert process.poll() is None, "nanio ended at once"
        assert time.monotonic() < until, f"nanio does not listen after {START_S:g} s"
        time.sleep(0.05)


@contextmanager
def server() -> Iterator[str]:
    """Set credentials in the environment and yield the URL of a server that forgets all objects at the end."""
    endpoint, folder = _started()
    credentials = {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    try:
        with patch.dict(os.environ, others | credentials, clear=True):
            yield endpoint
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path)


def make_bucket(endpoint: str, name: str) -> None:
    """Create a bucket by a signed request."""
    s3server.s3_client(endpoint).create_bucket(Bucket=name)


def put_directly(bucket: str, key: str) -> None:
    """Put an empty object."""
    s3server.s3_client(_started()[0]).put_object(Bucket=bucket, Key=key, Body=b"")
