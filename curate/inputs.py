"""From what a person typed to the sources it means: files, folders, S3 prefixes, web addresses and lists."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from urllib.parse import urljoin

from curate.lists import LIST_SUFFIXES, PATH_COLUMNS, read_list
from loader.errors import UsageError
from loader.storage import SilentError, StorageConfig, WebError, open_object, open_storage, public_url
from loader.storage.base import ObjectInfo
from loader.storage.web import split_url

__all__ = ["LIST_SUFFIXES", "PATH_COLUMNS", "VIDEO_SUFFIXES", "SourceRef", "list_sources", "shown"]

VIDEO_SUFFIXES = frozenset(
    (
        *(".3gp", ".avi", ".dv", ".flv", ".gif", ".ivf", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov"),
        *(".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".rm", ".ts", ".webm", ".wmv", ".y4m"),
    )
)
MAX_LIST_BYTES = 4 * 2**30
MAX_LIST_ENTRIES = 10_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WEB = ("http://", "https://")
_ASKED_AT_ONCE = 32
_BATCH = 4096
_MOST_SILENCES = 3
"""Entries of one server, in a row, that it may keep waiting."""


@dataclass(frozen=True)
class SourceRef:
    """A source before anything of it is read.

    Attributes:
        uri: as the person's input spells it, without what must not be shown; goes into the accounting.
        size: bytes; 0 when a web server does not tell.
        version: changes whenever the bytes may have changed.
        caption: from the list that named the source, or None.
        fault: why it cannot even be looked for, or None.
        attributes: what else the list says of it, such as "licence".
        address: where to open it when that holds a password or a signature; never stored. Else "".
        listed_in: URI of the list that named it, which decides where it may lead; "" for what a person named.
    """

    uri: str
    size: int
    version: str
    caption: str | None = None
    fault: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    address: str = field(default="", repr=False)
    listed_in: str = ""

    @property
    def location(self) -> str:
        """What to open."""
        return self.address or self.uri


def list_sources(inputs: Iterable[str], config: StorageConfig) -> list[SourceRef]:
    """All sources the inputs mean, sorted by URI, each once.

    A folder or prefix means the files below it whose name ends like a video's; a ``.txt``, ``.csv``,
    ``.jsonl`` or ``.parquet`` file is a list of paths and web addresses (relative ones count from the list's
    own place), see `curate.lists`; any other file is a source, whatever its name. A source in a list that
    does not exist is kept: it will fail in the accounting, not stop the run.

    Raises:
        UsageError: an input does not exist, a list cannot be read, or there is no source at all.
        RunError: a storage failed, or a web address among the inputs cannot be read.
    """
    inputs = list(inputs)
    sources: dict[str, SourceRef] = {}
    for text in inputs:
        for source in _expand(text, config):
            sources.setdefault(source.uri, source)
    if not sources:
        raise UsageError(
            f"no video found in {', '.join(map(shown, inputs))}; looked for names ending in"
            f" {' '.join(sorted(VIDEO_SUFFIXES))}"
        )
    return sorted(sources.values(), key=lambda source: source.uri)


def shown(text: str) -> str:
    """An input as it may be printed and stored: a web address without user, password and signature."""
    return public_url(text) if _is_web(text) else text


def _is_web(text: str) -> bool:
    return text.lower().startswith(_WEB)


def _expand(text: str, config: StorageConfig) -> Iterator[SourceRef]:
    info = _typed(text, config)
    if info is not None:
        if PurePosixPath(info.path).suffix.lower() in LIST_SUFFIXES:
            yield from _read_list(text, info, config)
        else:
            yield _named(text, info)
        return
    if _is_web(text):
        raise UsageError(f"input {shown(text)} does not exist; check the address")
    storage = open_storage(text, config)
    base = storage.root if text.startswith("file:") else text.rstrip("/")
    found = False
    for item in storage.list():
        found = True
        if PurePosixPath(item.path).suffix.lower() in VIDEO_SUFFIXES and not _hidden(item.path):
            yield _named(f"{base}/{item.path}", item)
    if not found:
        raise UsageError(
            f"input {text} does not exist or is empty; give a file, a folder, an s3:// prefix, a web address"
            " or a list"
        )


def _typed(text: str, config: StorageConfig) -> ObjectInfo | None:
    """The object a person named; None where it is none, and may be a folder."""
    try:
        return _stat(text, config, "")
    except UsageError:
        if _is_web(text):
            raise
        return None


def _named(uri: str, info: ObjectInfo) -> SourceRef:
    try:
        uri.encode()
    except UnicodeEncodeError:
        readable = uri.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return SourceRef(readable, info.size, info.version, fault="has a name that is no UTF-8; rename it")
    public = shown(uri)
    return SourceRef(public, info.size, info.version, address="" if public == uri else uri)


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _stat(uri: str, config: StorageConfig, listed_in: str) -> ObjectInfo | None:
    """None for what is no object, or does not exist.

    Raises:
        UsageError: the name can be none of an object, or a list may not name it.
    """
    if not _is_web(uri) and (uri in (".", "..") or uri.endswith(("/", "/.."))):
        return None
    storage, name = open_object(uri, config, listed_in)
    return storage.stat(name)


def _read_list(uri: str, info: ObjectInfo, config: StorageConfig) -> Iterator[SourceRef]:
    """Its sources in order; those of remote places are asked for side by side."""
    storage, name = open_object(uri, config)
    listed = _Listed(uri, storage.uri(name), config)
    with storage.open(name) as file, ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        size = max(info.size, file.seek(0, os.SEEK_END))  # a web server need not tell
        if size > MAX_LIST_BYTES:
            raise UsageError(f"list {shown(uri)} has {size} bytes, more than {MAX_LIST_BYTES}; split it")
        file.seek(0)
        entries = read_list(file, listed.listed_in if _is_web(uri) else uri)
        count = 0
        while batch := list(itertools.islice(entries, _BATCH)):
            count += len(batch)
            if count > MAX_LIST_ENTRIES:
                raise UsageError(f"list {shown(uri)} names more than {MAX_LIST_ENTRIES} sources; split it")
            remote = _is_remote(uri) or any(_is_remote(entry.path) for entry in batch)
            found = (pool.map if remote else map)(lambda entry: listed.look(entry.path), batch)
            for entry, source in zip(batch, found, strict=True):
                yield replace(
                    source, caption=entry.caption, attributes=entry.attributes, listed_in=listed.listed_in
                )


class _Listed:
    """Looks for what the entries of one list name.

    Args:
        uri: of the list, as it was given.
        listed_in: its full URI.
        config: patience, limits, permissions.
    """

    def __init__(self, uri: str, listed_in: str, config: StorageConfig) -> None:
        self.listed_in = listed_in
        self._uri = uri
        self._config = config
        self._silences: Counter[tuple[str, int]] = Counter()

    def look(self, path: str) -> SourceRef:
        """The source that an entry names, with its fault where it cannot be had."""
        place = path
        try:
            scheme = _SCHEME.match(place := _place(self._uri, path))
            if scheme and scheme[1].lower() not in ("http", "https", "s3", "file"):
                return _lost(place, f"is an address of a kind that is not read ({scheme[1]})")
            found = self._stat(place)
        except (UsageError, WebError) as error:
            return _lost(place, str(error))
        return _lost(place, "does not exist") if found is None else _named(place, found)

    def _stat(self, place: str) -> ObjectInfo | None:
        """Size and version; a server that was silent a few times in a row is not waited for again and again."""
        if not _is_web(place):
            return _stat(place, self._config, self.listed_in)
        parts = split_url(place)
        server = parts.hostname or "", parts.port or 0
        if self._silences[server] >= _MOST_SILENCES:
            raise WebError(
                f"{shown(place)} was not asked for: {server[0]} gave no whole answer to {_MOST_SILENCES} others"
            )
        try:
            found = _stat(place, self._config, self.listed_in)
        except SilentError:
            self._silences[server] += 1
            raise
        self._silences[server] = 0
        return found


def _is_remote(text: str) -> bool:
    return _SCHEME.match(text) is not None


def _place(list_uri: str, path: str) -> str:
    """What an entry of a list means: a URI, or a path that counts from the list.

    Raises:
        UsageError: it is a malformed address.
    """
    if _SCHEME.match(path):
        return path
    if _is_web(list_uri):
        try:
            return urljoin(list_uri.partition("#")[0].partition("?")[0], path)
        except ValueError:
            raise UsageError("is no web address; write http(s)://host/folder/name") from None
    return path if path.startswith("/") else list_uri[: list_uri.rfind("/") + 1] + path


def _lost(place: str, fault: str) -> SourceRef:
    return SourceRef(shown(place), 0, "", fault=fault)
