"""Sources that a list names, each looked up where the list lies."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from urllib.parse import urljoin

from reelweave.curate.sources.addresses import (
    SCHEME,
    is_remote,
    is_web,
    looked_up,
    lost_source,
    redact_input,
    stat_of,
    with_sidecars_beside,
)
from reelweave.curate.sources.entries import InvalidEntry, ListEntry
from reelweave.curate.sources.lists import read_list
from reelweave.curate.sources.source_ref import SourceRef
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import SilentError, StorageConfig, UnansweredError, open_object
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.names import redact_uri
from reelweave.loader.storage.web.web import split_url

ID_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov")
"""Endings of files that are named by the ID of a film."""
MAX_LIST_BYTES = 4 * 2**30
MAX_LIST_ENTRIES = 10_000_000

_ASKED_AT_ONCE = 32
_BATCH = 4096
_MOST_SILENCES = 3
"""Consecutive timeouts of one server after which its other entries fail without a request."""


def listed_sources(
    uri: str, info: ObjectInfo, config: StorageConfig, tell: Callable[[str], object] = lambda _: None
) -> Iterator[tuple[SourceRef, str]]:
    """Yield the sources of a list in order, each with its entry; remote ones are requested concurrently.

    Raises:
        UsageError: The list is too large, is none of its format, or all its entries are wrong.
    """
    storage, name = open_object(uri, config)
    listed = _Listed(uri, redact_input(storage.uri(name)), config)
    with storage.open(name) as file, ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        size = max(info.size, file.seek(0, os.SEEK_END))  # a web server may not state the size
        if size > MAX_LIST_BYTES:
            raise UsageError(
                f"list {redact_input(uri)} has {size} bytes, more than {MAX_LIST_BYTES}; split it"
            )
        file.seek(0)
        entries = read_list(file, listed.listed_in if is_web(uri) else uri, tell)
        count, wrong, usable = 0, None, False
        while batch := list(itertools.islice(entries, _BATCH)):
            count += len(batch)
            if count > MAX_LIST_ENTRIES:
                raise UsageError(
                    f"list {redact_input(uri)} names more than {MAX_LIST_ENTRIES} sources; split it"
                )
            good = [entry for entry in batch if isinstance(entry, ListEntry)]
            bad = [entry for entry in batch if isinstance(entry, InvalidEntry)]
            wrong, usable = wrong or (bad[0] if bad else None), usable or bool(good)
            for entry in bad:
                label = f"{redact_input(uri)}#{entry.place.replace(' ', '=')}"
                yield SourceRef(label, 0, "", fault=entry.reason, listed_in=listed.listed_in), ""
            remote = is_remote(uri) or any(is_remote(entry.path) for entry in good)
            yield from _sources_of(good, listed, pool if remote else None)
        if wrong and not usable:
            raise UsageError(f"list {redact_input(uri)}, {wrong.place} {wrong.reason}")


def _sources_of(
    entries: list[ListEntry], listed: "_Listed", pool: ThreadPoolExecutor | None
) -> Iterator[tuple[SourceRef, str]]:
    """Yield the sources of entries, with what these say of them."""
    attributes: dict[str, str] = {}
    for entry, source in zip(entries, listed.look_for(entries, pool), strict=True):
        # Neighbours often say the same, and then hold it once.
        attributes = entry.attributes if entry.attributes != attributes else attributes
        # `replace` takes three times as long.
        yield (
            SourceRef(
                source.uri,
                source.size,
                source.version,
                entry.caption,
                source.fault,
                attributes,
                source.address,
                listed.listed_in,
                tuple(entry.segments),
                source.undone,
                source.sidecars,
                entry.captions,
            ),
            f"{listed.shown_uri}, {entry.place}",
        )


_Film = tuple[str, tuple[str, ...], bool]


def _film(entry: ListEntry) -> _Film:
    return entry.path, entry.ids, _lacks_caption(entry)


def _lacks_caption(entry: ListEntry) -> bool:
    """Return True if the caption of a clip of the entry may come from a sidecar."""
    return not all(segment.caption for segment in entry.segments or (entry,))


class _Listed:
    """Resolver for the entries of one list.

    Args:
        uri: Address of the list as the user spelled it.
        listed_in: Full URI of the list.
        config: Storage settings.
    """

    def __init__(self, uri: str, listed_in: str, config: StorageConfig) -> None:
        self.listed_in = listed_in
        self.shown_uri = redact_input(uri)
        self._uri = uri
        self._config = config
        self._silences: Counter[tuple[str, int]] = Counter()
        self._seen: dict[_Film, SourceRef] = {}  # films with segments, which many entries name

    def look_for(self, entries: list[ListEntry], pool: ThreadPoolExecutor | None) -> Iterator[SourceRef]:
        """Return the source of each entry; a film with segments is looked up once."""
        once = {_film(entry): entry for entry in entries if entry.segments and _film(entry) not in self._seen}
        firsts, fileless = list(once.values()), [entry for entry in entries if not entry.segments]
        self._seen.update(zip(once, (pool.map if pool else map)(self._look, firsts), strict=True))
        rest = iter((pool.map if pool else map)(self._look, fileless))
        return (self._seen[_film(entry)] if entry.segments else next(rest) for entry in entries)

    def _look(self, entry: ListEntry) -> SourceRef:
        """Return the source that an entry names, with its fault where it cannot be opened."""
        lacks_caption = _lacks_caption(entry)
        if not entry.ids:
            return self._at(entry.path, lacks_caption)
        for name in entry.ids:
            for suffix in ("", *ID_SUFFIXES) if PurePosixPath(name).suffix in ID_SUFFIXES else ID_SUFFIXES:
                source = self._at(f"{name}{suffix}", lacks_caption)
                if source.fault is None or source.undone:
                    return source
        return SourceRef(
            f"{self.shown_uri}#id={entry.path}",
            0,
            "",
            fault="its list names it by its ID or web page, and beside the list lies no file"
            f" {' or '.join(entry.ids)} with {' '.join(ID_SUFFIXES)}; put the list beside the films, or add a column"
            " path",
        )

    def _at(self, path: str, lacks_caption: bool) -> SourceRef:
        try:
            address = _place(self._uri, path)
        except UsageError as error:
            return lost_source(redact_uri(path), str(error))
        scheme = SCHEME.match(address)
        if scheme and scheme[1].lower() not in ("http", "https", "s3", "file"):
            return lost_source(address, f"is an address of a kind that is not read ({scheme[1]})")
        source = looked_up(address, lambda: self._stat(address))
        if (
            source.fault is not None or not lacks_caption
        ):  # only clips without a caption have one of a sidecar
            return source
        return with_sidecars_beside(source, address, self._config, self.listed_in)

    def _stat(self, address: str) -> ObjectInfo | None:
        """Return size and version; a server with repeated timeouts is not contacted again."""
        if not is_web(address):
            return stat_of(address, self._config, self.listed_in)
        parts = split_url(address)
        server = parts.hostname or "", parts.port or 0
        if self._silences[server] >= _MOST_SILENCES:
            raise UnansweredError(
                f"{redact_input(address)} was not asked for: {server[0]} gave no whole answer to {_MOST_SILENCES}"
                " others"
            )
        try:
            info = stat_of(address, self._config, self.listed_in)
        except SilentError:
            self._silences[server] += 1
            raise
        self._silences[server] = 0
        return info


def _place(list_uri: str, path: str) -> str:
    """Resolve an entry of a list to a URI, or to a path relative to the list.

    Raises:
        UsageError: The entry is a malformed address.
    """
    if SCHEME.match(path):
        return path
    if is_web(list_uri):
        try:
            return urljoin(list_uri.partition("#")[0].partition("?")[0], path)
        except ValueError:
            raise UsageError("is no web address; write http(s)://host/folder/name") from None
    return path if path.startswith("/") else list_uri[: list_uri.rfind("/") + 1] + path
