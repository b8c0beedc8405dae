"""Captions written by people: in the list that named the source, beside the video, or in its tags."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.sidecars import (
    CUT,
    FURTHER_KEYS,
    OTHER,
    SIDECARS,
    UNUSED,
    Sidecar,
    UnusedSidecar,
    UnusedSidecarError,
    describe_keys,
    read_sidecar,
)
from reelweave.curate.caption.types import NO_CAPTION, Caption
from reelweave.curate.sources.source_ref import stem_of
from reelweave.loader.errors import ObjectError, RunError
from reelweave.loader.storage.base import Storage
from reelweave.loader.text import words

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


def find_written(
    storage: Storage,
    path: str,
    caption: str | None,
    tags: Mapping[str, str],
    config: CaptionConfig,
    captions: Sequence[str] = (),
) -> Caption:
    """Return the caption that people wrote for a source, or ``NO_CAPTION``.

    A sidecar without a caption counts as absent, and is told; so does a tag that is not `plausible`.

    Args:
        storage: Storage of the source.
        path: Path of the source in it.
        caption: Caption in the list that named the source; it has priority.
        tags: Tags of the container.
        config: Settings of the accepted origins.
        captions: All captions of the list, where it has several.

    Of a JSON sidecar the caption alone is used: `FURTHER_KEYS` of the provenance names its further keys, and `OTHER` a
    second sidecar with another caption. Where nothing else gives a text, the origin is that of the first sidecar that
    was not used and the reason; where a tag does, `UNUSED` of the provenance names it.

    Raises:
        MachineError: The disk, the network or this machine keeps a sidecar from being read.
        ObjectError: A sidecar exists and cannot be read, or lists captions of segments.
    """
    written = _with_list(_caption(caption or "", "input", config), captions, config)
    if written.text:
        return written
    stem = stem_of(path)
    written, unused = _from_sidecars(storage, stem, config) if config.sidecars else (NO_CAPTION, None)
    if written.text:
        return written
    if config.container:
        for tag in CONTAINER_TAGS:
            written = _caption(tags.get(tag, ""), f"container:{tag}", config)
            if plausible(written.text, stem.rsplit("/", 1)[-1]):
                return with_unused(written, unused)
    return Caption("", unused.origin) if unused else NO_CAPTION


def _from_sidecars(
    storage: Storage, stem: str, config: CaptionConfig
) -> tuple[Caption, UnusedSidecar | None]:
    """Return the caption of the first sidecar that has one, and the first one before without."""
    caption, unused = NO_CAPTION, None
    for suffix in SIDECARS:
        name = f"{stem.rsplit('/', 1)[-1]}{suffix}"
        try:
            info = storage.stat(stem + suffix)
        except ObjectError:  # a signed address of the video rarely opens its neighbours
            break
        try:
            sidecar = read_sidecar(storage, info, config.max_chars) if info else Sidecar()
        except UnusedSidecarError as error:
            unused = unused or UnusedSidecar(name, str(error))
            continue
        except RunError:
            if caption.text:  # nothing is needed of it
                break
            raise
        keys = {FURTHER_KEYS: describe_keys(name, sidecar.keys)} if sidecar.keys else {}
        text = _with_list(_caption(sidecar.text, f"sidecar:{name}", config), sidecar.texts, config)
        if not caption.text:
            caption = replace(text, provenance={**text.provenance, **keys})
            continue
        other = {OTHER: name} if text.text not in ("", caption.text) else {}
        caption = replace(caption, provenance={**caption.provenance, **other, **keys})
    return caption, unused


def with_unused(caption: Caption, unused: UnusedSidecar | None) -> Caption:
    """Return a caption whose provenance names the sidecar that was not used, if any."""
    if unused is None:
        return caption
    return replace(caption, provenance={**caption.provenance, UNUSED: unused.origin})


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


def _with_list(caption: Caption, texts: Sequence[str], config: CaptionConfig) -> Caption:
    """Return the caption of a list, its first one, with all of them where they are several."""
    shortened = [_caption(text, "", config).text for text in texts]
    several = tuple(dict.fromkeys(text for text in shortened if text))
    return replace(caption, written=several) if len(several) > 1 else caption


def _caption(text: str, source: str, config: CaptionConfig) -> Caption:
    """Return a text as a caption, cut off at the last word within the maximum, which its provenance tells."""
    # JSON may contain half a surrogate pair, which UTF-8 cannot encode.
    joined = " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())
    if len(joined) <= config.max_chars:
        return Caption(joined, source)
    head = joined[: config.max_chars + 1].rsplit(" ", 1)[0][: config.max_chars]
    return Caption(head, source, {CUT: f"{len(joined)} characters"})
