"""Captions people wrote: in the list that named the source, beside the video, or in its tags."""

import json
from collections.abc import Mapping

from curate.caption.config import CaptionConfig
from curate.caption.types import NO_CAPTION, Caption
from loader.storage.base import Storage

CONTAINER_TAGS = ("description", "synopsis", "comment", "title")


def find_written(
    storage: Storage, path: str, caption: str | None, tags: Mapping[str, str], config: CaptionConfig
) -> Caption:
    """The caption that people wrote for a source; ``NO_CAPTION`` when nobody did.

    A sidecar that is no text, or JSON without a "caption", counts as absent.

    Args:
        storage: holds the source.
        path: of the source in it.
        caption: of the list that named the source; it comes first.
        tags: of the container.
        config: which of them count.
    """
    text = _clean(caption or "", config.max_chars)
    if text:
        return Caption(text, "input")
    stem = path.rsplit(".", 1)[0] if "." in path.rsplit("/", 1)[-1] else path
    if config.sidecars:
        for suffix, parse in ((".txt", _clean), (".json", _from_json)):
            text = parse(_read_text(storage, stem + suffix, config), config.max_chars)
            if text:
                return Caption(text, f"sidecar:{stem.rsplit('/', 1)[-1]}{suffix}")
    if config.container:
        for tag in CONTAINER_TAGS:
            text = _clean(tags.get(tag, ""), config.max_chars)
            if text:
                return Caption(text, f"container:{tag}")
    return NO_CAPTION


def _read_text(storage: Storage, path: str, config: CaptionConfig) -> str:
    # UTF-8 needs at most four bytes a character, JSON escapes six; anything longer is no caption file.
    limit = 16 * config.max_chars
    info = storage.stat(path)
    if info is None or info.size > limit:
        return ""
    try:
        return storage.read(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        return ""


def _from_json(text: str, max_chars: int) -> str:
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return ""
    caption = value.get("caption") if isinstance(value, dict) else None
    return _clean(caption, max_chars) if isinstance(caption, str) else ""


def _clean(text: str, max_chars: int) -> str:
    # JSON may spell half a surrogate pair, which no file can hold.
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()
    words = " ".join(text.split())
    return words if len(words) <= max_chars else words[: max_chars + 1].rsplit(" ", 1)[0][:max_chars]
