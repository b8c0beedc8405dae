"""Entries of lists: the film that a row names, its segments, captions and attributes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from reelweave.curate.sources.attributes import MAX_CAPTION_CHARS, attributes_of, clean
from reelweave.curate.sources.column_names import CAPTIONS, plain_name
from reelweave.curate.sources.folder import VIDEO_SUFFIXES
from reelweave.curate.sources.literals import is_literal, literal_of
from reelweave.curate.sources.segments import Segment
from reelweave.curate.sources.span_columns import ListedSpan, SpanError, spans_of, with_caption_text
from reelweave.loader.text import texts_of

PATH_COLUMNS = ("path", "video", "source", "url")
_FILE_NAME = "file_name"
"""Column of Hugging Face's `VideoFolder`; beside IDs of films it may name a clip that somebody cut."""
MAX_PATH_CHARS = 16_384
ID_COLUMNS = ("youtubeid", "videoid", "ytid", "vid")
"""Columns with the ID of a film, whose file has this name, where no column holds its path; without case and signs."""

_PAGE = re.compile(
    r"(?:https?://)?(?:www\.|m\.)?(?:youtube\.com/(?:watch\?(?:[^#]*&)?v=|shorts/|embed/)|youtu\.be/)([\w-]{6,20})"
)
_ID_CHARS = 11
_MISSING = ("nan", "none", "null", "n/a", "<na>")
"""Words that pandas and others write where there is no caption."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class ListEntry:
    """One source in a source list.

    Attributes:
        path: Path as spelled in the list.
        caption: Caption of the whole film, or None.
        attributes: All further columns as text; any spelling of a licence column becomes "licence".
        segments: Segments of the film that the entry names, each with its own caption and attributes.
        ids: IDs of the film, one of which its file beside the list is called; then `path` is the first.
        place: Line or entry, such as "entry 7".
        captions: All captions of the whole film, `caption` first, where the entry has several.
    """

    path: str
    caption: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    segments: Sequence[Segment] = ()
    ids: tuple[str, ...] = ()
    place: str = ""
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class InvalidEntry:
    """Entry of a list that names no source.

    Attributes:
        place: Line or entry, such as "line 7".
        reason: Reason, worded to follow the place.
    """

    place: str
    reason: str


def entry_of(record: Record, label: str, key: str = "") -> ListEntry | InvalidEntry:
    """Return the entry that a row stands for, or the reason why it names no source.

    Args:
        record: Columns of the row.
        label: Line or entry, for messages.
        key: Name of the row in an object of films; "" for none.
    """
    columns = {name.strip(): value for name, value in record.items() if isinstance(name, str)}
    path, ids = _pop_path(columns)
    try:
        columns = with_caption_text(columns)
        if key and key not in columns.values():
            columns.setdefault("key" if path else "video_id", key)
        spans, rest = spans_of(columns)
    except SpanError as error:
        return InvalidEntry(label, f"(key {key!r}) {error}" if key else str(error))
    path, ids = _without_path(path, ids, columns, key, bool(spans))
    if not path:
        return InvalidEntry(
            label, f"has no path; name the column one of {', '.join((*PATH_COLUMNS, _FILE_NAME))}"
        )
    if spans:
        shared, fps = attributes_of(rest), _rate(rest)
        segments = tuple(_segment(span, shared, fps) for span in spans)
        return check_entry(ListEntry(path, segments=segments, ids=ids, place=label))
    captions = _pop_captions(columns)
    caption, several = next(iter(captions), None), captions if len(captions) > 1 else ()
    return check_entry(
        ListEntry(path, caption, attributes_of(columns), ids=ids, place=label, captions=several)
    )


def names_film(row: Record) -> bool:
    """Return True if a row has a path, an address or an ID of its own."""
    return bool(_pop_path(dict(row))[0])


def _without_path(
    path: str, ids: tuple[str, ...], columns: Record, key: str, has_spans: bool
) -> tuple[str, tuple[str, ...]]:
    """Return path and IDs of a row; where it has no path, those by its key, or by the ID of its clip.

    A row with spans speaks of the film that its own ID names, and any other row is a film that its key names: Vript
    lists its clips, each a file of its own, with the ID of their film beside.
    """
    if path and not ids:
        return path, ids
    if key and not (ids and (has_spans or key.isdigit())):
        key = clean(key.strip())
        if PurePosixPath(key).suffix.lower() in VIDEO_SUFFIXES:
            return key, ()
        page = _PAGE.match(key)
        ids = (page[1] if page else key,)
    elif not ids and not has_spans:
        clip = next((value for name, value in columns.items() if plain_name(name) == "clipid"), None)
        ids = (clean(clip.strip()),) if isinstance(clip, str) and clip.strip() else ()
    if key:  # ActivityNet's files are called v_ID, and those that other tools fetch by the ID
        ids = tuple(dict.fromkeys(chain(ids, map(_other_name, ids))))
    return (ids[0], ids) if ids else ("", ())


def _other_name(film: str) -> str:
    """Return the name that ActivityNet gives a film with this ID, or its ID for such a name."""
    if len(film) == _ID_CHARS:
        return f"v_{film}"
    return film[2:] if film.startswith("v_") and len(film) == _ID_CHARS + 2 else film


def _pop_path(columns: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the path of an entry, whose column is removed, and the IDs under which its file is to be found."""
    by_name = {name.lower(): name for name in reversed(columns)}
    column = next(
        (by_name[name] for name in PATH_COLUMNS if name in by_name and columns.get(by_name[name])), None
    )
    value = None if column is None else columns[column]
    page = _PAGE.match(value.strip()) if isinstance(value, str) else None
    if column is not None and page is None:
        del columns[column]
        return (clean(value.strip()), ()) if isinstance(value, str) else ("", ())
    if page:  # beside it Koala-36M has the ID of a clip, not of the film
        return page[1], (page[1],)
    named = {plain_name(name): value for name, value in reversed(columns.items())}
    film_ids = [
        film_id.strip()
        for name in ID_COLUMNS
        if isinstance(film_id := named.get(name), str) and film_id.strip()
    ]
    ids = tuple(dict.fromkeys(map(clean, film_ids)))
    if ids:
        return ids[0], ids
    name = columns.pop(by_name[_FILE_NAME], None) if _FILE_NAME in by_name else None
    return (clean(name.strip()), ()) if isinstance(name, str) else ("", ())


def _pop_captions(columns: dict[str, Any]) -> tuple[str, ...]:
    """Return the captions of a whole film; their column is removed unless it may hold something else beside texts."""
    named = {plain_name(name): name for name in reversed(columns)}
    column = next((named[name] for name in CAPTIONS if name in named), None)
    if column is None:
        return ()
    value = _parse_list_cell(columns[column])
    if plain_name(column) == "caption" or not isinstance(value, list | tuple) or len(value) < 2:
        del columns[column]
    texts = map(_caption, texts_of(value))
    return tuple(dict.fromkeys(text for text in texts if text))


def _caption(text: str) -> str | None:
    """Return a caption as it is stored; the words that a program writes where there is none are none."""
    text = clean(text[:MAX_CAPTION_CHARS]).strip()
    return text if text and text.lower() not in _MISSING else None


def _segment(span: ListedSpan, shared: dict[str, str], fps: float | None) -> Segment:
    caption = _caption(span.caption or "")
    attributes = {**shared, **attributes_of(span.columns)} if span.columns else shared
    return Segment(
        span.start, span.end, span.unit, fps if span.unit == "frame" else None, caption, attributes
    )


def _rate(rest: Mapping[str, Any]) -> float | None:
    """Return the frame rate that a row states."""
    value = next((value for name, value in rest.items() if name.lower() == "fps"), None)
    try:
        rate = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return None
    return rate if 0 < rate < 1e4 else None


def _parse_list_cell(value: Any) -> Any:
    """Return the list that a cell holds as text, or the cell: captions may be in brackets."""
    if not isinstance(value, str) or not is_literal(value):
        return value
    try:
        parsed = literal_of(value)
    except ValueError:
        return value
    return (
        parsed if isinstance(parsed, list) and all(isinstance(element, str) for element in parsed) else value
    )


def check_entry(entry: ListEntry) -> ListEntry | InvalidEntry:
    if len(entry.path) <= MAX_PATH_CHARS:
        return entry
    return InvalidEntry(
        entry.place, f"has a path of {len(entry.path)} characters; at most {MAX_PATH_CHARS} are read"
    )
