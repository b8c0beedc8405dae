"""Where disturbed runs write: a folder, or a prefix of a real S3 server behind a proxy."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reelweave.loader.storage import Storage, StorageConfig, open_storage
from tests.s3server import FaultyProxy, s3_client

BUCKET = "lake"
_LOOK_S = 0.004


@dataclass
class Place:
    """The output of one run.

    Attributes:
        uri: Of the dataset.
        source: Of the raw videos.
        sets: What the command must be told to reach both.
        proxy: In front of the server, of S3 only.
    """

    uri: str
    source: str
    sets: tuple[str, ...] = ()
    proxy: FaultyProxy | None = None
    endpoint: str = ""
    _seen: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)

    @property
    def storage_config(self) -> StorageConfig:
        """How to reach it without the proxy."""
        return StorageConfig(endpoint_url=self.endpoint or None, region="us-east-1")

    @property
    def storage(self) -> Storage:
        """The output, without the proxy."""
        return open_storage(self.uri, self.storage_config)

    def paths(self) -> set[str]:
        """Everything that lies there, hidden files too, looked at from outside of our code."""
        if not self.endpoint:
            # Files come and go meanwhile, which a walk of pathlib does not forgive.
            walk = os.walk(self.uri)
            return {
                os.path.relpath(f"{folder}/{name}", self.uri) for folder, _, names in walk for name in names
            }
        pages = (
            _client(self.endpoint)
            .get_paginator("list_objects_v2")
            .paginate(Bucket=BUCKET, Prefix=self._below)
        )
        return {item["Key"].removeprefix(self._below) for page in pages for item in page.get("Contents", ())}

    def read(self, path: str) -> bytes:
        """Return the bytes of one file."""
        if not self.endpoint:
            return (Path(self.uri) / path).read_bytes()
        body: bytes = _client(self.endpoint).get_object(Bucket=BUCKET, Key=self._below + path)["Body"].read()
        return body

    def progress(self) -> int:
        """Return the number of changes so far: files that came or went, requests that write."""
        if self.proxy is not None:
            return len(self.proxy.lines("^(PUT|POST|DELETE)"))
        now = self.paths()
        self._gone |= self._seen - now
        self._seen |= now
        return len(self._seen) + len(self._gone)

    def wait(self, until: Callable[[], bool], changes: int) -> bool:
        """Wait for so many changes, or until something else holds; whether the changes came."""
        while self.progress() < changes:
            if until():
                return False
            time.sleep(_LOOK_S)
        return True

    @property
    def _below(self) -> str:
        return self.uri.removeprefix(f"s3://{BUCKET}/") + "/"


@contextmanager
def on_s3(endpoint: str, name: str, lease_s: float = 5.0) -> Iterator[Place]:
    """A prefix that is emptied in the end, reached through a proxy of its own."""
    with FaultyProxy(endpoint) as proxy:
        sets = (
            f"storage.endpoint_url={proxy.url}",
            "storage.region=us-east-1",
            "storage.backoff_base_s=0.01",
            f"storage.lease_s={lease_s}",
        )
        place = Place(f"s3://{BUCKET}/{name}", f"s3://{BUCKET}/raw", sets, proxy, endpoint)
        try:
            yield place
        finally:
            client = _client(endpoint)
            for path in place.paths():
                client.delete_object(Bucket=BUCKET, Key=f"{name}/{path}")


_LOCAL = threading.local()


def _client(endpoint: str) -> Any:
    """A client of this thread: making one takes a tenth of a second."""
    if getattr(_LOCAL, "endpoint", None) != endpoint:
        _LOCAL.endpoint, _LOCAL.client = endpoint, s3_client(endpoint)
    return _LOCAL.client
