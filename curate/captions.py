"""Captions people wrote: a sidecar beside the video, or the container's own tags."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, Field

from loader.storage.base import Storage

CONTAINER_TAGS = ("description", "synopsis", "comment", "title")


class CaptionConfig(BaseModel, frozen=True, extra="forbid"):
    """Where captions come from."""

    sidecars: bool = Field(True, description="read NAME.txt and NAME.json beside NAME.mp4")
    container: bool = Field(True, description="fall back to the container's description, comment or title")
    max_chars: int = Field(4000, gt=0, description="longer captions are cut at a word")


@dataclass(frozen=True)
class Caption:
    """A caption and its provenance ("sidecar:NAME.txt", "container:title", "input", "none")."""

    text: str
    source: str


NO_CAPTION = Caption("", "none")


def find_caption(storage: Storage, path: str, metadata: Mapping[str, str], config: CaptionConfig) -> Caption:
    """The caption of the source ``path``; ``NO_CAPTION`` when nobody wrote one.

    A sidecar that is no text, or JSON without a "caption", counts as absent.
    """
    stem = path.rsplit(".", 1)[0] if "." in path.rsplit("/", 1)[-1] else path
    if config.sidecars:
        for suffix, parse in ((".txt", _clean), (".json", _from_json)):
            text = parse(_read_text(storage, stem + suffix, config), config.max_chars)
            if text:
                return Caption(text, f"sidecar:{stem.rsplit('/', 1)[-1]}{suffix}")
    if config.container:
        for tag in CONTAINER_TAGS:
            text = _clean(metadata.get(tag, ""), config.max_chars)
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
