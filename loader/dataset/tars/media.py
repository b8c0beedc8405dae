"""Which member of a sample holds its pictures and what its caption is, in tars of whatever origin."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

VIDEO = ("mp4", "webm", "mkv", "mov", "avi", "m4v")
IMAGES = ("gif", "jpg", "jpeg", "png", "webp")
MEDIA = (*VIDEO, *IMAGES)
"""Suffixes of members with pictures; where a sample has several, the first of these is its media."""

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,jpeg_pipe,png_pipe,webp_pipe"
"""FFmpeg's names of the containers of ``MEDIA``. Each is known by its first bytes and names no other file to read,
as playlists do; whoever opens media from outside passes them as ``format_whitelist``."""

NO_CAPTION = ("", "none")

MAX_CAPTION_CHARS = 4000
_MAX_TEXT_BYTES = 16 * MAX_CAPTION_CHARS
_MAX_JSON_BYTES = 1 << 20
_MAX_CAPTIONS = 100  # in a list, of which the first is taken
_JSON_FIELDS = ("caption", "text", "prompt")


def media_rank(suffix: str) -> int:
    """The lower, the more likely the media of its sample; ``len(MEDIA)`` for what holds no pictures.

    Of "left.mp4" the last part counts.
    """
    last = suffix.rpartition(".")[2]
    return MEDIA.index(last) if last in MEDIA else len(MEDIA)


def media_suffix(suffixes: Iterable[str]) -> str | None:
    """The member that holds the pictures, the first of equals; None when there is none."""
    best = min(suffixes, key=media_rank, default="")
    return best if media_rank(best) < len(MEDIA) else None


def caption_of(members: Mapping[str, bytes | memoryview]) -> tuple[str, str]:
    """A sample's caption, and the member it stands in: "member:txt", "member:json", or "none".

    The text of ``txt``; when it is missing or empty, the first field of ``json`` among caption, text and prompt
    that holds one. A list, as the field or as the whole of ``json``, stands for its first caption. Bytes that are not
    UTF-8 are replaced, white space is joined, and a caption of more than ``MAX_CAPTION_CHARS`` characters is cut at a
    word.

    Args:
        members: contents by suffix.
    """
    if text := _clean(bytes(members.get("txt", b"")[:_MAX_TEXT_BYTES]).decode("utf-8-sig", "replace")):
        return text, "member:txt"
    if 0 < len(members.get("json", b"")) <= _MAX_JSON_BYTES:
        try:
            value = json.loads(bytes(members["json"]).decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            return NO_CAPTION
        if text := _spoken(value):
            return text, "member:json"
    return NO_CAPTION


def _spoken(value: Any, depth: int = 3) -> str:
    """Return the first caption in a JSON value: text, a list of captions, or an object with one; or ""."""
    if isinstance(value, str):
        return _clean(value)
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [value.get(name) for name in _JSON_FIELDS]
    elif isinstance(value, list):
        inner = value[:_MAX_CAPTIONS]
    return next(filter(None, (_spoken(one, depth - 1) for one in inner if depth)), "")


def _clean(text: str) -> str:
    # JSON may spell half a surrogate pair, which no file can hold.
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()
    words = " ".join(text.split())
    if len(words) <= MAX_CAPTION_CHARS:
        return words
    return words[: MAX_CAPTION_CHARS + 1].rsplit(" ", 1)[0][:MAX_CAPTION_CHARS]
