"""From what a person typed to the sources it means: files, folders, S3 prefixes and lists."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from loader.errors import UsageError
from loader.storage import StorageConfig, open_object, open_storage
from loader.storage.base import ObjectInfo

VIDEO_SUFFIXES = frozenset(
    (
        *(".3gp", ".avi", ".dv", ".flv", ".gif", ".ivf", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov"),
        *(".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".rm", ".ts", ".webm", ".wmv", ".y4m"),
    )
)
LIST_SUFFIXES = frozenset((".txt", ".csv", ".jsonl", ".parquet"))
PATH_COLUMNS = ("path", "video", "source", "url")
MAX_LIST_BYTES = 4 * 2**30

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True)
class SourceRef:
    """A source before anything of it is read.

    Attributes:
        uri: as the person's input spells it; goes into the accounting.
        size: bytes.
        version: changes whenever the bytes may have changed.
        caption: from the list that named the source, or None.
        fault: why it cannot even be looked for, or None.
    """

    uri: str
    size: int
    version: str
    caption: str | None = None
    fault: str | None = None


def list_sources(inputs: Iterable[str], config: StorageConfig) -> list[SourceRef]:
    """All sources the inputs mean, sorted by URI, each once.

    A folder or prefix means the files below it whose name ends like a video's; a ``.txt``, ``.csv``,
    ``.jsonl`` or ``.parquet`` file is a list of paths (relative ones count from the list's own place) with
    an optional caption column; any other file is a source, whatever its name. A source in a list that does not
    exist is kept: it will fail in the accounting, not stop the run.

    Raises:
        UsageError: an input does not exist, a list cannot be read, or there is no source at all.
    """
    sources: dict[str, SourceRef] = {}
    for text in inputs:
        for source in _expand(text, config):
            sources.setdefault(source.uri, source)
    if not sources:
        raise UsageError(
            f"no video found in {', '.join(inputs)}; looked for names ending in {' '.join(sorted(VIDEO_SUFFIXES))}"
        )
    return sorted(sources.values(), key=lambda source: source.uri)


def _expand(text: str, config: StorageConfig) -> Iterator[SourceRef]:
    if text.startswith(("http://", "https://")):
        raise UsageError(
            f"{text}: web addresses are not read yet; give a file, a folder, an s3:// prefix or a list"
        )
    base = text.rstrip("/")
    info = _stat(text, config)
    if info is not None:
        suffix = PurePosixPath(info.path).suffix.lower()
        if suffix in LIST_SUFFIXES:
            yield from _read_list(text, config)
        else:
            yield _named(text, info)
        return
    storage = open_storage(text, config)
    base = storage.root if text.startswith("file:") else base
    found = False
    for item in storage.list():
        found = True
        if PurePosixPath(item.path).suffix.lower() in VIDEO_SUFFIXES and not _hidden(item.path):
            yield _named(f"{base}/{item.path}", item)
    if not found:
        raise UsageError(
            f"input {text} does not exist or is empty; give a file, a folder, an s3:// prefix or a list"
        )


def _named(uri: str, info: ObjectInfo) -> SourceRef:
    try:
        uri.encode()
    except UnicodeEncodeError:
        readable = uri.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return SourceRef(readable, info.size, info.version, fault="has a name that is no UTF-8; rename it")
    return SourceRef(uri, info.size, info.version)


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _stat(uri: str, config: StorageConfig) -> ObjectInfo | None:
    if uri in (".", "..") or uri.endswith(("/", "/..")):
        return None
    try:
        storage, name = open_object(uri, config)
    except UsageError:
        return None
    return storage.stat(name)


def _read_list(uri: str, config: StorageConfig) -> Iterator[SourceRef]:
    storage, name = open_object(uri, config)
    info = storage.stat(name)
    if info is not None and info.size > MAX_LIST_BYTES:
        raise UsageError(f"list {uri} has {info.size} bytes, more than {MAX_LIST_BYTES}; split it")
    folder = uri.rsplit("/", 1)[0] + "/" if "/" in uri else ""
    for path, caption in _list_entries(uri, storage.read(name)):
        if path.startswith(("http://", "https://")):
            raise UsageError(
                f"list {uri} names {path}: web addresses are not read yet; give files or s3:// objects"
            )
        full = path if path.startswith("/") or _REMOTE.match(path) else folder + path
        found = _stat(full, config)
        if found is None:
            yield SourceRef(full, 0, "", caption, fault="does not exist")
        else:
            yield replace(_named(full, found), caption=caption or None)


def _list_entries(uri: str, data: bytes) -> Iterator[tuple[str, str | None]]:
    """(path, caption) of each entry of a list."""
    suffix = PurePosixPath(uri).suffix.lower()
    if suffix == ".parquet":
        yield from _from_records(uri, _parquet_records(uri, data))
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"list {uri} is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if suffix == ".txt":
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                yield line.strip(), None
    elif suffix == ".csv":
        yield from _from_records(uri, csv.DictReader(io.StringIO(text)))
    else:
        yield from _from_records(uri, _jsonl_records(uri, text))


def _jsonl_records(uri: str, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"list {uri}, line {number} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise UsageError(f'list {uri}, line {number} is no object like {{"path": "..."}}')
            yield record


def _parquet_records(uri: str, data: bytes) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"list {uri} is no readable parquet file: {error}") from error
    columns = [name for name in table.column_names if name in (*PATH_COLUMNS, "caption")]
    yield from table.select(columns).to_pylist()


def _from_records(uri: str, records: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
    for number, record in enumerate(records, 1):
        path = next((record[name] for name in PATH_COLUMNS if record.get(name)), None)
        if not isinstance(path, str):
            raise UsageError(
                f"list {uri}, entry {number} has no path; name the column one of {', '.join(PATH_COLUMNS)}"
            )
        caption = record.get("caption")
        yield path, caption if isinstance(caption, str) else None
