"""Captions written by people: in the list that named the source, beside the video, or in its tags."""

import json
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from typing import Any

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.types import NO_CAPTION, Caption
from reelweave.curate.sources.column_names import names_spans
from reelweave.curate.sources.source_ref import stem_of
from reelweave.loader.errors import ObjectError
from reelweave.loader.storage.base import ObjectInfo, Storage
from reelweave.loader.text import first_text, words

CONTAINER_TAGS = ("description", "synopsis", "comment", "title")

_MIN_WORDS = 4
_MIN_LETTERS = 0.7
"""Minimum share of letters in a caption; settings, dates and places of a camera have fewer."""

_LINK = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+\.\w+", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_OF_SOFTWARE = re.compile(
    r"^(?:created|made|recorded|edited|encoded|captured|produced|exported|converted|uploaded|downloaded)"
    r" (?:with|by|using|from|on|in)\b"
    r"|\b(?:encode[dr]? (?:date|settings)|all rights reserved|copyright|subscribe|\w+ ?handler)\b"
    r"|\b(?:lav[fc]|x26[45]|ffmpeg|handbrake|mencoder)\d*\b|©",
    re.IGNORECASE,
)


class _SegmentsError(Exception):
    """Reason why the captions of a sidecar are not those of the film."""


def find_written(
    storage: Storage, path: str, caption: str | None, tags: Mapping[str, str], config: CaptionConfig
) -> Caption:
    """Return the caption that people wrote for a source, or ``NO_CAPTION``.

    A sidecar that is no text, or JSON without a "caption", counts as absent; so does a tag that is not
    `plausible`.

    Args:
        storage: Storage of the source.
        path: Path of the source in it.
        caption: Caption in the list that named the source; it has priority.
        tags: Tags of the container.
        config: Settings of the accepted origins.

    A sidecar that is not UTF-8, nor UTF-16 with its byte order mark, gives no text; where nothing else does,
    the origin is "unreadable:NAME.txt".

    Raises:
        MachineError: The disk, the network or this machine keeps a sidecar from being read.
        ObjectError: A sidecar exists and cannot be read, or lists captions of segments.
    """
    text = _clean(caption or "", config.max_chars)
    if text:
        return Caption(text, "input")
    stem = stem_of(path)
    unreadable = ""
    if config.sidecars:
        for suffix, parse in ((".txt", _clean), (".json", _from_json)):
            try:
                info = storage.stat(stem + suffix)
            except ObjectError:  # a signed address of the video rarely opens its neighbours
                break
            try:
                text = parse(_read_text(storage, info, config), config.max_chars) if info else ""
            except UnicodeDecodeError:
                text, unreadable = "", unreadable or f"unreadable:{stem.rsplit('/', 1)[-1]}{suffix}"
            except _SegmentsError as error:
                raise ObjectError(f"{stem}{suffix} {error}") from error
            if text:
                return Caption(text, f"sidecar:{stem.rsplit('/', 1)[-1]}{suffix}")
    if config.container:
        for tag in CONTAINER_TAGS:
            text = _clean(tags.get(tag, ""), config.max_chars)
            if plausible(text, stem.rsplit("/", 1)[-1]):
                return Caption(text, f"container:{tag}")
    return Caption("", unreadable) if unreadable else NO_CAPTION


def plausible(text: str, name: str) -> bool:
    """Return True when a container's tag reads like a caption: descriptive words, not traces of software.

    Versions, settings, dates, links, credits and the file's own name are rejected.

    Args:
        text: Text of the tag.
        name: Name of the file, without its suffix.
    """
    if "\ufffd" in text:  # in an unknown encoding other than UTF-8
        return False
    plain = _LINK.sub(" ", text)
    if _OF_SOFTWARE.search(text) or words(plain.replace("_", " ")) == words(name.replace("_", " ")):
        return False
    written = [char for char in plain if not char.isspace()]
    # Scripts without blanks count by characters.
    count = sum(1 for word in words(plain) if _WORD.fullmatch(word) or not word.isascii())
    letters = sum(char.isalpha() or unicodedata.category(char).startswith("M") for char in written)
    return count >= _MIN_WORDS and letters >= _MIN_LETTERS * len(written)


def _read_text(storage: Storage, info: ObjectInfo, config: CaptionConfig) -> str:
    # UTF-8 needs at most four bytes per character, JSON escapes six; a longer file is no caption.
    limit = 16 * config.max_chars
    if info.size > limit:
        return ""
    try:
        data = storage.read(info.path, 0, limit)
    except FileNotFoundError:  # removed meanwhile
        return ""
    return data.decode("utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")


def _from_json(text: str, max_chars: int) -> str:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        return ""
    caption = value.get("caption") if isinstance(value, dict) else None
    if isinstance(caption, list) and len(caption) > 1 and _lists_segments(value):
        raise _SegmentsError(
            "lists captions of segments; name them in a list of inputs instead (docs/inputs.md)"
        )
    return _clean(first_text(caption), max_chars)


def _lists_segments(value: Any) -> bool:
    return any(isinstance(nested, list) and names_spans(name) for name, nested in value.items())


def _clean(text: str, max_chars: int) -> str:
    # JSON may contain half a surrogate pair, which UTF-8 cannot encode.
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()
    words = " ".join(text.split())
    return words if len(words) <= max_chars else words[: max_chars + 1].rsplit(" ", 1)[0][:max_chars]
