"""Web server as a read-only storage."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib.parse import quote, urlsplit, urlunsplit

from reelweave.loader.errors import UsageError
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.names import check_path
from reelweave.loader.storage.web.web import split_url
from reelweave.loader.storage.web.web_object import WebObject


@dataclass(frozen=True)
class HttpStorage:
    """Objects below a web address; see `Storage` for the methods. Writing and listing raise a ``UsageError``.

    Paths are spelled as in addresses: ``%20`` is a space; characters not allowed in addresses are encoded. Unlike other
    storages, it carries its credentials when pickled, since they are part of the address. `ObjectInfo.size` is 0 if the
    server does not send it.

    Attributes:
        base: ``http(s)://[user:password@]host[:port]/folder`` without a trailing slash.
        config: timeouts and limits.
        query: query sent with every path, such as a signature.
        listed_in: URI of the list that names these objects, for permissions of redirects; "" if the user did.
    """

    base: str = field(repr=False)
    config: StorageConfig
    query: str = field(default="", repr=False)
    listed_in: str = ""

    def __post_init__(self) -> None:
        split_url(self.base)

    @property
    def root(self) -> str:
        parts = urlsplit(self.base)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def uri(self, path: str) -> str:
        return f"{self.root}/{_spell_path(path)}"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:  # noqa: ARG002
        raise UsageError(f"{self.root} lies on a web server, which lists nothing; give a list of addresses")

    def stat(self, path: str) -> ObjectInfo | None:
        try:
            info = self._object(path).look()
        except FileNotFoundError:
            return None
        return ObjectInfo(path, info.size or 0, info.version or str(info.size))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            self._object(path).look()
        return self._object(path).read(start, length)

    def open(self, path: str) -> BinaryIO:
        return self._object(path).open()

    def write(self, path: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def write_file(self, path: str, source: Path) -> None:  # noqa: ARG002
        self._refuse()

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:  # noqa: ARG002
        self._refuse()

    def create(self, path: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse()

    def create_file(self, path: str, source: Path) -> bool:  # noqa: ARG002
        self._refuse()

    def replace(self, path: str, data: bytes, version: str) -> bool:  # noqa: ARG002
        self._refuse()

    def delete(self, path: str) -> None:  # noqa: ARG002
        self._refuse()

    def delete_many(self, paths: Iterable[str]) -> None:  # noqa: ARG002
        self._refuse()

    def delete_tree(self, prefix: str) -> None:  # noqa: ARG002
        self._refuse()

    def sweep(self) -> None:
        self._refuse()

    def drop_versions(self) -> bool:
        self._refuse()

    def _object(self, path: str) -> WebObject:
        query = f"?{self.query}" if self.query else ""
        address = f"{self.base}/{_spell_path(check_path(path))}{query}"
        return WebObject(address, self.uri(path), self.config, self.listed_in)

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"{self.root} lies on a web server, which can only be read;"
            " write to a local folder or s3://bucket/prefix"
        )


def _spell_path(path: str) -> str:
    """Return ``path`` as spelled in an address; encoded characters stay as they are."""
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", path), safe="/%:@!$&'()*+,;=~", errors="surrogatepass")
