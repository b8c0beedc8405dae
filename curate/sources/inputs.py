"""Sources named by inputs: files, folders, S3 prefixes, web addresses and lists."""

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import PurePosixPath

from reelweave.curate.sources.addresses import (
    is_remote,
    is_web,
    looked_up,
    lost_source,
    redact_input,
    sidecar_of,
    source_at,
    stat_of,
    version_of,
    with_sidecars,
    with_sidecars_beside,
)
from reelweave.curate.sources.folder import SIDECAR_SUFFIXES, VIDEO_SUFFIXES, FolderEntry, walk, why_no_file
from reelweave.curate.sources.listed import listed_sources
from reelweave.curate.sources.lists import LIST_SUFFIXES
from reelweave.curate.sources.source_ref import NamedSources, SourceRef, stem_of
from reelweave.loader.errors import MachineError, UsageError
from reelweave.loader.storage import Storage, StorageConfig, UnansweredError, open_storage
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.local import LocalStorage
from reelweave.loader.storage.names import is_utf8
from reelweave.loader.text import pluralize

__all__ = ["SourceRef", "list_sources", "redact_input"]

_MOST_UNPAIRED = 3
"""Files beside no video that a note names."""
_MOST_KINDS = 5
"""Extensions that a note about files left out names."""


def list_sources(
    inputs: Iterable[str], config: StorageConfig, tell: Callable[[str], object] = lambda _: None
) -> list[SourceRef]:
    """Return all sources of the inputs, sorted by URI, each once.

    A folder or prefix stands for the files below it with a suffix of a video. A ``.txt``, ``.csv``, ``.tsv``,
    ``.json``, ``.jsonl`` or ``.parquet`` file is a list of paths and web addresses, relative to the list's own place:
    see `reelweave.curate.sources.lists`. Any other file is a source, whatever its name. An entry that cannot be read is
    kept with its fault: it fails in the accounting and does not stop the run.

    Args:
        inputs: Arguments of the user.
        config: Storage settings.
        tell: Callback for sentences about entries left out by rule.

    Raises:
        UsageError: An input does not exist, nothing of a list can be read, there is no source at all, or two entries
            contradict each other, or two addresses of one name lead to different files.
        RunError: A storage failed, or a web address among the inputs cannot be read.
    """
    inputs = list(inputs)
    named = frozenset(map(_absolute, inputs))
    merged = NamedSources()
    for text in inputs:
        for source, entry in _expand(text, config, tell, named):
            merged.add(source, entry)
    sources = merged.sources()
    for note in merged.notes():
        tell(note)
    if not sources and all(PurePosixPath(text).suffix.lower() in LIST_SUFFIXES for text in inputs):
        raise UsageError(f"list {', '.join(map(redact_input, inputs))} names no source; it is empty")
    if not sources:
        raise UsageError(
            f"no video found in {', '.join(map(redact_input, inputs))}; looked for names ending in"
            f" {' '.join(sorted(VIDEO_SUFFIXES))}"
        )
    return sources


def _expand(
    text: str, config: StorageConfig, tell: Callable[[str], object], named: Set[str]
) -> Iterator[tuple[SourceRef, str]]:
    """Yield the sources of an input, each with the entry of a list that names it, or ""."""
    if is_remote(text) and not is_utf8(text):
        raise UsageError(f"input {text!r} is no address, since it is no UTF-8; encode its bytes, as in %E9")
    info = _find_object(text, config)
    if info is not None:
        if PurePosixPath(info.path).suffix.lower() in LIST_SUFFIXES:
            yield from listed_sources(text, info, config, tell)
        else:
            yield with_sidecars_beside(source_at(text, info), text, config), ""
        return
    if is_web(text):
        raise UsageError(f"input {redact_input(text)} does not exist; check the address")
    yield from ((source, "") for source in _in_folder(text, config, tell, named))


def _in_folder(
    text: str, config: StorageConfig, tell: Callable[[str], object], named: Set[str]
) -> list[SourceRef]:
    """Return the sources below a folder or prefix, with what is known of their sidecars.

    Files that are inputs themselves, by their absolute address, are neither left out nor sidecars.
    """
    storage = open_storage(text, config)
    base = storage.root if text.startswith("file:") else text.rstrip("/")
    hidden = 0
    other_suffixes: Counter[str] = Counter()
    lists: list[str] = []  # the first one
    entry = None
    videos: list[SourceRef] = []
    sidecars: defaultdict[str, list[str]] = defaultdict(list)
    for entry, info in _below(storage):
        uri = f"{base}/{entry.path}"
        suffix = PurePosixPath(entry.path).suffix.lower()
        video = suffix in VIDEO_SUFFIXES
        if entry.hidden:
            hidden += video
        elif entry.fault and (video or entry.many):
            videos.append(lost_source(uri, entry.fault, entry.undone))
        elif video:
            look = functools.partial(storage.stat, entry.path)
            videos.append(source_at(uri, info) if info else looked_up(uri, look))
        elif _absolute(uri) in named:
            continue
        elif (exact_suffix := PurePosixPath(entry.path).suffix) in SIDECAR_SUFFIXES:
            if info := info or sidecar_of(storage, entry.path):
                sidecars[uri.removesuffix(exact_suffix)].append(version_of(exact_suffix, info))
        else:  # captions are read of .txt and .json in small letters
            other_suffixes[suffix if suffix not in SIDECAR_SUFFIXES else exact_suffix] += 1
            lists += [entry.path] if suffix in LIST_SUFFIXES - SIDECAR_SUFFIXES and not lists else []
    if entry is None:
        raise UsageError(
            f"input {text} does not exist or is empty; give a file, a folder, an s3:// prefix, a web address"
            " or a list"
        )
    stems = {stem_of(video.uri) for video in videos}
    unpaired = (
        stem + version.partition(" ")[0] for stem in sidecars.keys() - stems for version in sidecars[stem]
    )
    _tell_unpaired(text, sorted(unpaired), tell)
    _tell_left_out(text, hidden, other_suffixes, tell, lists)
    return [with_sidecars(video, sidecars.get(stem_of(video.uri), ())) for video in videos]


def _tell_unpaired(text: str, uris: Sequence[str], tell: Callable[[str], object]) -> None:
    """Tell files that look like sidecars and stand beside no video of their name."""
    if uris:
        first = ", ".join(redact_input(uri) for uri in uris[:_MOST_UNPAIRED])
        files = pluralize(len(uris), "file that ends", "files that end")
        tell(
            f"not used below {redact_input(text)}: {files} in .txt or .json beside no video of the same"
            f" name ({first}{', ...' if len(uris) > _MOST_UNPAIRED else ''}); the caption"
            " of NAME.mp4 is NAME.txt or NAME.json; name a list of captions as an input, too"
        )


def _absolute(text: str) -> str:
    """Return the absolute address of an input."""
    return text if is_remote(text) else os.path.abspath(text)  # noqa: PTH100 - links stay


def _tell_left_out(
    text: str,
    hidden: int,
    other_suffixes: Counter[str],
    tell: Callable[[str], object],
    lists: Sequence[str],
) -> None:
    # Names that begin with a dot.
    if hidden:
        files = pluralize(hidden, "hidden file", "hidden files")
        tell(
            f"left out below {redact_input(text)}: {files} (their names, or those of folders above, start with a dot);"
            " name them as inputs to include them"
        )
    # Files that are no video by their name, and what else they may be good for.
    if other_suffixes:
        by_count = sorted(
            other_suffixes.items(), key=lambda suffix_count: (-suffix_count[1], suffix_count[0])
        )
        kinds = ", ".join(f"{kind or 'none'} {count}" for kind, count in by_count[:_MOST_KINDS])
        tell(
            f"left out below {redact_input(text)}: {pluralize(other_suffixes.total(), 'file')} whose extension ({kinds}"
            f"{', ...' if len(other_suffixes) > _MOST_KINDS else ''}) is none of a video; name videos among them as"
            " inputs"
            + ("; `reelweave index` makes tars a dataset" if ".tar" in other_suffixes else "")
            + (
                f". {lists[0]} may be a list of captions or segments: name it as an input, too"
                if lists
                else ""
            )
        )


def _below(storage: Storage) -> Iterator[tuple[FolderEntry, ObjectInfo | None]]:
    """Yield the entries of an input that is no single object, with size and version where known."""
    if isinstance(storage, LocalStorage):
        if not os.path.isdir(storage.folder):  # noqa: PTH112 - raises nothing
            raise UsageError(f"input {storage.root} {why_no_file(str(storage.folder))}")
        yield from ((entry, None) for entry in walk(storage.folder))
    else:
        for item in storage.list():
            yield (
                FolderEntry(item.path, hidden=any(part.startswith(".") for part in item.path.split("/"))),
                item,
            )


def _find_object(text: str, config: StorageConfig) -> ObjectInfo | None:
    """Return the object that an input names; None where it is none, and may be a folder."""
    try:
        return stat_of(text, config, "")
    except UsageError:
        if is_web(text):
            raise
        return None
    except UnansweredError as error:
        raise MachineError(str(error), lasts=True) from error
