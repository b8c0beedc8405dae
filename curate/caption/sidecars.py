"""Sidecars of videos: their captions, and in words why one was not used."""

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from reelweave.curate.sources.attributes import MAX_NAME_CHARS, clean
from reelweave.curate.sources.column_names import names_spans
from reelweave.loader.errors import ObjectError
from reelweave.loader.storage.base import ObjectInfo, Storage
from reelweave.loader.text import first_text, pluralize, texts_of

SIDECARS = (".txt", ".json")
"""Suffixes of sidecars, in the order in which they are read."""
UNUSED = "unused_sidecar"
"""Key of a caption's provenance: the sidecar that was not used, though a caption came from elsewhere."""
OTHER = "other_sidecar"
"""Key of a caption's provenance: the sidecar with another caption, which was not used."""
FURTHER_KEYS = "unused_keys"
"""Key of a caption's provenance: the JSON sidecar that has more keys than its caption, and these keys."""
CUT = "cut_of"
"""Key of a caption's provenance: the length of the text of which it is the begin."""
_UNREADABLE, _UNUSED = "unreadable:", "unused:"
_NOT_UTF8 = "not UTF-8"
_SHOWN_KEYS = 10


class UnusedSidecarError(Exception):
    """Reason why a sidecar gives no caption."""


class UnusedSidecar(NamedTuple):
    """Sidecar that gives no caption.

    Attributes:
        name: Its name.
        reason: Why not, as it follows "it is".
    """

    name: str
    reason: str

    @property
    def origin(self) -> str:
        """Origin of the missing caption, as the index keeps it."""
        if self.reason == _NOT_UTF8:
            return f"{_UNREADABLE}{self.name}"
        return f"{_UNUSED}{self.name} ({self.reason})"

    @classmethod
    def parse(cls, origin: str) -> Self | None:
        """Return the sidecar of which an origin tells; None where it tells of none."""
        if origin.startswith(_UNREADABLE):
            return cls(origin.removeprefix(_UNREADABLE), _NOT_UTF8)
        if not origin.startswith(_UNUSED):
            return None
        name, _, reason = origin.removeprefix(_UNUSED).rpartition(" (")
        return cls(name, reason[:-1])


class Sidecar(NamedTuple):
    """Caption of a sidecar, and the names of what else it holds.

    Attributes:
        text: Its caption; "" where the file was removed meanwhile.
        keys: Further keys of JSON that have values, which are not used.
        texts: All captions of JSON that holds a list of several.
    """

    text: str = ""
    keys: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def read_sidecar(storage: Storage, info: ObjectInfo, max_chars: int) -> Sidecar:
    """Return the content of a sidecar.

    Args:
        storage: Storage of the source.
        info: Path and size of the sidecar.
        max_chars: Maximum length of a caption, characters; a file that is much longer is not read.

    Raises:
        UnusedSidecarError: It gives no caption.
        ObjectError: It cannot be read, or lists captions of segments.
    """
    # UTF-8 needs at most four bytes per character, JSON escapes six; a longer file is no caption.
    limit = 16 * max_chars
    if info.size > limit:
        raise UnusedSidecarError("too large for a caption")
    try:
        data = storage.read(info.path, 0, limit)
    except FileNotFoundError:
        return Sidecar()
    try:
        text = data.decode("utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError:
        raise UnusedSidecarError(_NOT_UTF8) from None
    sidecar = Sidecar(text)
    if info.path.endswith(".json") and text.strip():
        sidecar = _sidecar_of(text, info.path)
    if not sidecar.text.strip():
        raise UnusedSidecarError("empty")
    return sidecar


def _sidecar_of(text: str, path: str) -> Sidecar:
    """Return the caption and the further keys of JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # nested too deeply
        raise UnusedSidecarError("no valid JSON") from None
    if not isinstance(value, dict):
        raise UnusedSidecarError('JSON that is no object with a "caption"')
    if "caption" not in value:
        raise UnusedSidecarError('JSON without the key "caption"')
    caption = value["caption"]
    if isinstance(caption, list) and len(caption) > 1 and _lists_segments(value):
        raise ObjectError(
            f"{path} lists captions of segments; name them in a list of inputs instead (docs/inputs.md)"
        )
    if not (isinstance(caption, str) or first_text(caption)) and caption not in (None, []):
        raise UnusedSidecarError('JSON whose "caption" is no text')
    texts = texts_of(caption)
    return Sidecar(first_text(caption), _further_keys(value), tuple(texts) if len(texts) > 1 else ())


def _further_keys(value: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of keys beside the caption that have a value."""
    names = (name for name, nested in value.items() if name != "caption" and nested not in (None, "", [], {}))
    return tuple(clean(" ".join(name.split()))[:MAX_NAME_CHARS] for name in names)


def describe_keys(name: str, keys: Sequence[str]) -> str:
    """Return a JSON sidecar and its further keys in words."""
    more = ", ..." if len(keys) > _SHOWN_KEYS else ""
    return f"{name} ({', '.join(keys[:_SHOWN_KEYS])}{more})"


def _lists_segments(value: Any) -> bool:
    return any(isinstance(nested, list) and names_spans(name) for name, nested in value.items())


def describe_unused(origins: Iterable[str | None]) -> tuple[str, ...]:
    """Return in words how many clips have a sidecar that was not used, by reason, the most frequent one first.

    Args:
        origins: Origin of the caption of each clip, or `UNUSED` of its provenance.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for origin in origins:
        if origin and (unused := UnusedSidecar.parse(origin)):
            counts[unused.reason] += 1
            first.setdefault(unused.reason, unused.name)
    return tuple(_sentence(reason, count, first[reason]) for reason, count in counts.most_common())


def _sentence(reason: str, count: int, name: str) -> str:
    clips = pluralize(count, "clip has", "clips have")
    if reason == _NOT_UTF8:
        return (
            f"{clips} no caption of a sidecar, since it is not UTF-8 (the first: {name}); write it again as UTF-8 and"
            " run the command with --update"
        )
    return (
        f"{clips} no caption of a sidecar, since it is {reason} (the first: {name}); NAME.txt holds the words alone,"
        ' NAME.json {"caption": "..."}'
    )
