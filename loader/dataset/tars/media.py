"""Media and captions of samples in tars of any origin."""

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Mapping

from reelweave.loader.text import texts_of

VIDEO = ("mp4", "webm", "mkv", "mov", "avi", "m4v", "ts")
IMAGES = ("gif", "jpg", "jpeg", "png", "webp")
MEDIA = (*VIDEO, *IMAGES)
"""Suffixes of media members, by preference; a sample's media is the first one present."""

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,gif,apng,jpeg_pipe,png_pipe,webp_pipe"
"""FFmpeg names of the containers of ``MEDIA``, for ``format_whitelist`` when media is untrusted. Each is recognized by
its first bytes and, unlike playlists, refers to no other file."""

NO_CAPTION = ("", "none")

MAX_CAPTION_CHARS = 4000
_MAX_TEXT_BYTES = 16 * MAX_CAPTION_CHARS
_MAX_JSON_BYTES = 1 << 20
CAPTION_FIELDS = ("caption", "text", "prompt")
"""Fields of a sample's JSON that are captions and no metadata, the best first."""


def media_rank(suffix: str) -> int:
    """Return the rank of a suffix as its sample's media, lower first; ``len(MEDIA)`` for other members.

    The part behind the last dot counts, as in "left.mp4".
    """
    last = suffix.rpartition(".")[2]
    return MEDIA.index(last) if last in MEDIA else len(MEDIA)


def media_alike(suffixes: Iterable[str]) -> list[str]:
    """Return the suffixes of a sample's media that are of the kind of the one that counts, videos or pictures."""
    suffixes = list(suffixes)
    best = media_suffix(suffixes)
    kind = VIDEO if best and best.rpartition(".")[2] in VIDEO else IMAGES
    return [suffix for suffix in suffixes if best and suffix.rpartition(".")[2] in kind]


def media_suffix(suffixes: Iterable[str]) -> str | None:
    """Return the suffix of the media member, the first of equals; None if there is none."""
    best = min(suffixes, key=media_rank, default="")
    return best if media_rank(best) < len(MEDIA) else None


def caption_of(members: Mapping[str, bytes | memoryview]) -> tuple[str, str]:
    """Return a sample's caption, and its origin, see `whole_caption`; above ``MAX_CAPTION_CHARS`` cut at a word."""
    text, source = whole_caption(members)
    return shorten(text), source


def captions_of(members: Mapping[str, bytes | memoryview]) -> tuple[str, ...]:
    """Return all different captions of a sample, that of `caption_of` first; of a list in ``json`` there are several.

    Args:
        members: contents by suffix.
    """
    texts, _ = _whole_captions(members)
    return tuple(dict.fromkeys(map(shorten, texts)))


def shorten(text: str) -> str:
    """Return a text, cut at a word where it has more than ``MAX_CAPTION_CHARS`` characters."""
    if len(text) <= MAX_CAPTION_CHARS:
        return text
    return text[: MAX_CAPTION_CHARS + 1].rsplit(" ", 1)[0][:MAX_CAPTION_CHARS]


def whole_caption(members: Mapping[str, bytes | memoryview]) -> tuple[str, str]:
    """Return a sample's caption, and its origin: "member:txt", "member:json", or "none".

    The caption is the text of ``txt``; if missing or empty, the first field of ``json`` among caption, text and prompt
    that has one. A list, as the field or as the whole of ``json``, counts with its first caption. Where dots in a
    film's name make longer suffixes ("5 live.mp4"), the text named alike ("5 live.txt") counts. UTF-16 is known by its
    byte order mark; otherwise invalid UTF-8 is replaced. White space is joined. Of very long texts the
    beginning is read.

    Args:
        members: contents by suffix.
    """
    texts, source = _whole_captions(members)
    return (texts[0], source) if texts else NO_CAPTION


def _whole_captions(members: Mapping[str, bytes | memoryview]) -> tuple[list[str], str]:
    """Return all captions of a sample, and their origin, see `whole_caption`."""
    stem = (media_suffix(members) or "").rpartition(".")[0]
    alike = f"{stem}." if stem else ""
    for prefix in dict.fromkeys(("", alike)):
        if text := _clean(_decode_text(bytes(members.get(f"{prefix}txt", b"")[:_MAX_TEXT_BYTES]))):
            return [text], "member:txt"
        content = members.get(f"{prefix}json", b"")
        if 0 < len(content) <= _MAX_JSON_BYTES and (texts := _json_captions(bytes(content))):
            return texts, "member:json"
    return [], NO_CAPTION[1]


def _json_captions(content: bytes) -> list[str]:
    try:
        texts = texts_of(json.loads(_decode_text(content)), CAPTION_FIELDS)
    except (ValueError, RecursionError):
        return []
    return [text for text in map(_clean, texts) if text]


def _decode_text(content: bytes) -> str:
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    return content.decode(encoding, "replace")


def _clean(text: str) -> str:
    # JSON may contain half a surrogate pair, which UTF-8 cannot encode.
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()
    return " ".join(text.split())
