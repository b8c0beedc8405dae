"""Names of columns that lists give spans and captions, compared without case and signs."""

import re
from functools import lru_cache

CAPTIONS = (
    "caption",
    "captions",
    "encaptions",
    "sentences",
    "sentence",
    "densecaption",
    "shortcaption",
    "text",
    "prompt",
)
"""Columns that hold the captions of films and segments, the first that is there, without case and signs."""

CAPTION_PARTS = ("caption", "content", "text", "description")
"""Parts of a caption that is an object, as Vript writes them, the first that is there."""

_OF = r"(?:clip|clips|segment|seg|span|scene|shot|captions?|event|time|t)?"
_UNITS = {
    "frame": r"(?:frames?|frame(?:id|idx|index|number|num|no))",
    "ms": r"(?:ms|msecs?|millis|milliseconds?|timems)",
    "s": r"(?:s|secs?|seconds?|times?|timestamps?|timesteps?|timecodes?|ts)?",
}
_START, _END = r"(?:starts?|begins?)", r"(?:ends?|stops?)"
_SIDES = {
    unit: tuple(re.compile(rf"{_OF}(?:{side}{words}|{words}{side})") for side in (_START, _END))
    for unit, words in _UNITS.items()
}
_SIZE = r"(?:duration|dur|length|len)(?:in)?"
_LENGTHS = {
    "frame": rf"(?:{_SIZE}|num|n|numberof|count)frames?|framecount",
    "ms": rf"{_SIZE}(?:ms|msecs?|millis|milliseconds?)",
    "s": rf"{_SIZE}(?:s|secs?|seconds?)?",
}
_PARTS = r"(?:clip|segment|seg|span|scene|shot|caption|event)"
PAIRS = re.compile(
    r"(?:clip|segment|video)?(?:timestamps?|timecodes?|timespans?|timeranges?|spans?|startend(?:s|times?)?)"
)
FRAME_PAIRS = re.compile(
    r"(?:clip|segment)?(?:frame(?:s|span|spans|range|ranges|interval)|startend(?:frames?|idx))"
)
NESTED = re.compile(r"clips?|segments?|scenes?|shots?|events?|intervals?|annotations?")
ONE = re.compile(r"clip|segment|shot|event|interval")
LISTING = re.compile(r"clips?|segments?")
_UNREAD = re.compile(
    rf"{_OF}(?:{_START}|{_END})(?:idx|index|pos|position|ticks?|us|pts|ns)|(?:clip|segment)?(?:start|begin)duration"
)
_NAMES = 4096


@lru_cache(_NAMES)
def plain_name(column: str) -> str:
    """Return the name of a column without case and signs."""
    return re.sub(r"[^a-z0-9]", "", column.lower())


def may_hold_spans(column: str) -> bool:
    """Return True if a column of this name may hold spans, or captions of several segments."""
    return names_spans(column) or plain_name(column) in CAPTIONS


@lru_cache(_NAMES)
def names_spans(column: str) -> bool:
    """Return True if a column of this name may hold spans."""
    name = plain_name(column)
    patterns = (PAIRS, FRAME_PAIRS, NESTED, *(pattern for sides in _SIDES.values() for pattern in sides))
    return any(pattern.fullmatch(name) for pattern in patterns)


@lru_cache(_NAMES)
def is_unread(column: str) -> bool:
    """Return True if a column of this name looks like a span in a unit that is not read."""
    return _UNREAD.fullmatch(plain_name(column)) is not None


@lru_cache(_NAMES)
def may_matter(column: str) -> bool:
    """Return True if a column of this name holds spans, or looks like it."""
    return names_spans(column) or is_unread(column)


@lru_cache(_NAMES)
def sides_of(columns: tuple[str, ...]) -> tuple[tuple[str, str, str] | None, str | None]:
    """Return columns with the start and the end of spans, and the kind of both; or a column with one of them."""
    names = {column: plain_name(column) for column in columns}
    lone: str | None = None
    for kind, (starts, ends) in _SIDES.items():
        start = next((column for column, name in names.items() if starts.fullmatch(name)), None)
        end = next((column for column, name in names.items() if ends.fullmatch(name)), None)
        if start is not None and end is not None:
            return (start, end, kind), None
        lone = lone or start or end
    return None, lone


@lru_cache(_NAMES)
def start_and_length_of(columns: tuple[str, ...]) -> tuple[str, str, str] | None:
    """Return columns with the start and the length of spans, in one unit, and the kind of both.

    A length that is called that of a clip comes first: beside it ``duration`` is the film's. That of a film
    (``video_duration``) is none.
    """
    names = {column: plain_name(column) for column in columns}
    for part in (_PARTS, ""):
        for kind, (starts, _) in _SIDES.items():
            lengths = re.compile(f"{part}(?:{_LENGTHS[kind]})")
            start = next((column for column, name in names.items() if starts.fullmatch(name)), None)
            length = next((column for column, name in names.items() if lengths.fullmatch(name)), None)
            if start is not None and length is not None:
                return start, length, kind
    return None
