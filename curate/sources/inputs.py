"""Sources named by inputs: files, folders, S3 prefixes, web addresses and lists."""

import functools
import hashlib
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urljoin

from curate.frames.faults import fault_of
from curate.sources.entries import InvalidEntry, ListEntry
from curate.sources.folder import FolderEntry, walk, why_no_file
from curate.sources.lists import read_list
from curate.sources.source_ref import NamedSources, SourceRef, stem_of
from curate.sources.suffixes import ID_SUFFIXES, LIST_SUFFIXES, SIDECAR_SUFFIXES, VIDEO_SUFFIXES
from loader.errors import MachineError, RunError, UsageError
from loader.storage import (
    SilentError,
    Storage,
    StorageConfig,
    WebError,
    open_object,
    open_storage,
    public_url,
)
from loader.storage.base import ObjectInfo
from loader.storage.local import LocalStorage
from loader.storage.names import redacted
from loader.storage.web.web import split_url

__all__ = ["SourceRef", "list_sources", "shown"]

MAX_LIST_BYTES = 4 * 2**30
MAX_LIST_ENTRIES = 10_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_OPENED = re.compile(r"s3://[A-Za-z0-9._-]+(/|$)|file://(localhost)?/", re.IGNORECASE)
_WEB = ("http://", "https://")
_ASKED_AT_ONCE = 32
_BATCH = 4096
_MOST_KINDS = 5
"""Extensions that a note about files left out names."""
_MOST_SILENCES = 3
"""Consecutive timeouts of one server after which its other entries fail without a request."""


def list_sources(
    inputs: Iterable[str], config: StorageConfig, tell: Callable[[str], object] = lambda _: None
) -> list[SourceRef]:
    """Return all sources of the inputs, sorted by URI, each once.

    A folder or prefix stands for the files below it with a suffix of a video. A ``.txt``, ``.csv``, ``.json``,
    ``.jsonl`` or ``.parquet`` file is a list of paths and web addresses, relative to the list's own place:
    see `curate.sources.lists`. Any other file is a source, whatever its name. An entry that cannot be read is
    kept with its fault: it fails in the accounting and does not stop the run.

    Args:
        inputs: Arguments of the user.
        config: Storage settings.
        tell: Callback for sentences about entries left out by rule.

    Raises:
        UsageError: An input does not exist, nothing of a list can be read, there is no source at all, or two entries
            contradict each other.
        RunError: A storage failed, or a web address among the inputs cannot be read.
    """
    inputs = list(inputs)
    found = NamedSources()
    for text in inputs:
        for source, place in _expand(text, config, tell):
            found.add(source, place)
    sources = found.sources()
    if not sources and all(PurePosixPath(text).suffix.lower() in LIST_SUFFIXES for text in inputs):
        raise UsageError(f"list {', '.join(map(shown, inputs))} names no source; it is empty")
    if not sources:
        raise UsageError(
            f"no video found in {', '.join(map(shown, inputs))}; looked for names ending in"
            f" {' '.join(sorted(VIDEO_SUFFIXES))}"
        )
    return sources


def shown(text: str) -> str:
    """Return an input for output and storage: in UTF-8, without user, password and signature."""
    if _is_web(text):
        return public_url(text)
    if not _is_utf8(text):  # a file URI can express any byte
        return f"file://{quote(os.fsencode(Path(text).absolute()))}"
    return redacted(text) if _is_remote(text) and not _OPENED.match(text) else text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_web(text: str) -> bool:
    return text.lower().startswith(_WEB)


def _expand(
    text: str, config: StorageConfig, tell: Callable[[str], object]
) -> Iterator[tuple[SourceRef, str]]:
    """Yield the sources of an input, each with the entry of a list that names it, or ""."""
    if _is_remote(text) and not _is_utf8(text):
        raise UsageError(f"input {text!r} is no address, since it is no UTF-8; encode its bytes, as in %E9")
    info = _typed(text, config)
    if info is not None:
        if PurePosixPath(info.path).suffix.lower() in LIST_SUFFIXES:
            yield from _read_list(text, info, config)
        else:
            yield _beside(_named(text, info), text, config), ""
        return
    if _is_web(text):
        raise UsageError(f"input {shown(text)} does not exist; check the address")
    storage = open_storage(text, config)
    base = storage.root if text.startswith("file:") else text.rstrip("/")
    hidden = 0
    others: Counter[str] = Counter()
    found = None
    named, sidecars = list[SourceRef](), defaultdict[str, list[str]](list)
    for found, info in _below(storage):
        uri = f"{base}/{found.path}"
        suffix = PurePosixPath(found.path).suffix.lower()
        video = suffix in VIDEO_SUFFIXES
        if found.hidden:
            hidden += video
        elif found.fault and (video or found.many):
            named.append(_lost(uri, found.fault, found.undone))
        elif video:
            look = functools.partial(storage.stat, found.path)
            named.append(_named(uri, info) if info else _looked(uri, look))
        elif (own := PurePosixPath(found.path).suffix) in SIDECAR_SUFFIXES:
            if info := info or _sidecar(storage, found.path):
                sidecars[uri.removesuffix(own)].append(_version_of(own, info))
        else:  # captions are read of .txt and .json in small letters
            others[suffix if suffix not in SIDECAR_SUFFIXES else own] += 1
    yield from ((_with_sidecars(one, sidecars.get(stem_of(one.uri), ())), "") for one in named)
    if found is None:
        raise UsageError(
            f"input {text} does not exist or is empty; give a file, a folder, an s3:// prefix, a web address"
            " or a list"
        )
    if hidden:
        tell(
            f"{hidden} hidden files below {shown(text)} (their names, or those of folders above, start with a dot) were"
            " left out; name them as inputs to include them"
        )
    if others:
        most = sorted(others.items(), key=lambda one: (-one[1], one[0]))
        kinds = ", ".join(f"{kind or 'none'} {count}" for kind, count in most[:_MOST_KINDS])
        tell(
            f"{others.total()} files below {shown(text)} were left out, since their extension ({kinds}"
            f"{', ...' if len(others) > _MOST_KINDS else ''}) is none of a video; name videos among them as inputs"
        )


def _beside(source: SourceRef, text: str, config: StorageConfig) -> SourceRef:
    """Return a source that an input names, with what is known of its sidecars."""
    if _is_web(text):
        return source
    storage, name = open_object(text, config, "")
    found = ((suffix, _sidecar(storage, stem_of(name) + suffix)) for suffix in sorted(SIDECAR_SUFFIXES))
    return _with_sidecars(source, [_version_of(suffix, info) for suffix, info in found if info])


def _sidecar(storage: Storage, path: str) -> ObjectInfo | None:
    """Return size and version of a sidecar; None where it is not there or cannot be looked at."""
    try:
        return storage.stat(path)
    except (RunError, UsageError):
        return None


def _version_of(suffix: str, info: ObjectInfo) -> str:
    return f"{suffix} {info.size} {info.version}"


def _with_sidecars(source: SourceRef, versions: Sequence[str]) -> SourceRef:
    if not versions:
        return source
    digest = hashlib.sha256("\0".join(sorted(versions)).encode()).hexdigest()
    return replace(source, sidecars=digest[:16])


def _below(storage: Storage) -> Iterator[tuple[FolderEntry, ObjectInfo | None]]:
    """Yield the entries of an input that is no single object, with size and version where known."""
    if isinstance(storage, LocalStorage):
        if not os.path.isdir(storage.folder):  # noqa: PTH112 - raises nothing
            raise UsageError(f"input {storage.root} {why_no_file(storage.root)}")
        yield from ((found, None) for found in walk(storage.folder))
    else:
        for item in storage.list():
            yield (
                FolderEntry(item.path, hidden=any(part.startswith(".") for part in item.path.split("/"))),
                item,
            )


def _typed(text: str, config: StorageConfig) -> ObjectInfo | None:
    """Return the object that an input names; None where it is none, and may be a folder."""
    try:
        return _stat(text, config, "")
    except UsageError:
        if _is_web(text):
            raise
        return None


def _looked(place: str, look: Callable[[], ObjectInfo | None]) -> SourceRef:
    """Return the source at a place, with its fault where it cannot be opened."""
    try:
        info = look()
    except UsageError as error:
        return _lost(place, str(error))
    except MachineError as error:
        return _lost(place, str(error), undone=True)
    except Exception as error:  # noqa: BLE001 - fault_of raises errors of the environment again
        return _lost(place, fault_of(error)[1])
    if info is None:
        return _lost(place, "does not exist" if _is_remote(place) else why_no_file(place))
    return _named(place, info)


def _named(uri: str, info: ObjectInfo) -> SourceRef:
    public = shown(uri)
    return SourceRef(public, info.size, info.version, address=uri if _is_web(uri) and public != uri else "")


def _stat(uri: str, config: StorageConfig, listed_in: str) -> ObjectInfo | None:
    """Return size and version, or None for a missing object; names that a list may not contain cause no request.

    Raises:
        UsageError: The name is invalid, or forbidden in a list.
    """
    if not listed_in and not _is_web(uri) and (uri in (".", "..") or uri.endswith(("/", "/.."))):
        return None
    storage, name = open_object(uri, config, listed_in)
    return storage.stat(name)


def _read_list(uri: str, info: ObjectInfo, config: StorageConfig) -> Iterator[tuple[SourceRef, str]]:
    """Yield the sources of a list in order, each with its entry; remote ones are requested concurrently."""
    storage, name = open_object(uri, config)
    listed = _Listed(uri, shown(storage.uri(name)), config)
    with storage.open(name) as file, ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        size = max(info.size, file.seek(0, os.SEEK_END))  # a web server may not state the size
        if size > MAX_LIST_BYTES:
            raise UsageError(f"list {shown(uri)} has {size} bytes, more than {MAX_LIST_BYTES}; split it")
        file.seek(0)
        entries = read_list(file, listed.listed_in if _is_web(uri) else uri)
        count, wrong, usable = 0, None, False
        attributes: dict[str, str] = {}
        while batch := list(itertools.islice(entries, _BATCH)):
            count += len(batch)
            if count > MAX_LIST_ENTRIES:
                raise UsageError(f"list {shown(uri)} names more than {MAX_LIST_ENTRIES} sources; split it")
            good = [entry for entry in batch if isinstance(entry, ListEntry)]
            bad = [entry for entry in batch if isinstance(entry, InvalidEntry)]
            wrong, usable = wrong or (bad[0] if bad else None), usable or bool(good)
            for entry in bad:
                place = f"{shown(uri)}#{entry.place.replace(' ', '=')}"
                yield SourceRef(place, 0, "", fault=entry.reason, listed_in=listed.listed_in), ""
            remote = _is_remote(uri) or any(_is_remote(entry.path) for entry in good)
            for said, source in zip(good, listed.look_for(good, pool if remote else None), strict=True):
                # Neighbours often say the same, and then hold it once.
                attributes = said.attributes if said.attributes != attributes else attributes
                # `replace` takes three times as long.
                named = SourceRef(
                    source.uri,
                    source.size,
                    source.version,
                    said.caption,
                    source.fault,
                    attributes,
                    source.address,
                    listed.listed_in,
                    tuple(said.segments),
                    source.undone,
                )
                yield named, f"{shown(uri)}, {said.place}"
        if wrong and not usable:
            raise UsageError(f"list {shown(uri)}, {wrong.place} {wrong.reason}")


_Film = tuple[str, tuple[str, ...]]


def _film(entry: ListEntry) -> _Film:
    return entry.path, entry.ids


class _Listed:
    """Resolver for the entries of one list.

    Args:
        uri: Address of the list as the user spelled it.
        listed_in: Full URI of the list.
        config: Storage settings.
    """

    def __init__(self, uri: str, listed_in: str, config: StorageConfig) -> None:
        self.listed_in = listed_in
        self._uri = uri
        self._config = config
        self._silences: Counter[tuple[str, int]] = Counter()
        self._seen: dict[_Film, SourceRef] = {}  # films with segments, which many entries name

    def look_for(self, entries: list[ListEntry], pool: ThreadPoolExecutor | None) -> Iterator[SourceRef]:
        """Return the source of each entry; a film with segments is looked up once."""
        once = {_film(one): one for one in entries if one.segments and _film(one) not in self._seen}
        firsts, others = list(once.values()), [one for one in entries if not one.segments]
        self._seen.update(zip(once, (pool.map if pool else map)(self._look, firsts), strict=True))
        rest = iter((pool.map if pool else map)(self._look, others))
        return (self._seen[_film(one)] if one.segments else next(rest) for one in entries)

    def _look(self, entry: ListEntry) -> SourceRef:
        """Return the source that an entry names, with its fault where it cannot be opened."""
        if not entry.ids:
            return self._at(entry.path)
        for name in entry.ids:
            for suffix in ("", *ID_SUFFIXES) if PurePosixPath(name).suffix in ID_SUFFIXES else ID_SUFFIXES:
                source = self._at(f"{name}{suffix}")
                if source.fault is None:
                    return source
        return SourceRef(
            f"{shown(self._uri)}#id={entry.path}",
            0,
            "",
            fault="its list names it by its ID or web page, and beside the list lies no file"
            f" {' or '.join(entry.ids)} with {' '.join(ID_SUFFIXES)}; put the list beside the films, or add a column"
            " path",
        )

    def _at(self, path: str) -> SourceRef:
        try:
            place = _place(self._uri, path)
        except UsageError as error:
            return _lost(redacted(path), str(error))
        scheme = _SCHEME.match(place)
        if scheme and scheme[1].lower() not in ("http", "https", "s3", "file"):
            return _lost(place, f"is an address of a kind that is not read ({scheme[1]})")
        return _looked(place, lambda: self._stat(place))

    def _stat(self, place: str) -> ObjectInfo | None:
        """Return size and version; a server with repeated timeouts is not contacted again."""
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
    """Resolve an entry of a list to a URI, or to a path relative to the list.

    Raises:
        UsageError: The entry is a malformed address.
    """
    if _SCHEME.match(path):
        return path
    if _is_web(list_uri):
        try:
            return urljoin(list_uri.partition("#")[0].partition("?")[0], path)
        except ValueError:
            raise UsageError("is no web address; write http(s)://host/folder/name") from None
    return path if path.startswith("/") else list_uri[: list_uri.rfind("/") + 1] + path


def _lost(place: str, fault: str, undone: bool = False) -> SourceRef:
    return SourceRef(shown(place), 0, "", fault=fault, undone=undone)
