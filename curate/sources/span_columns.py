"""Columns of a list that name segments of a film: which they are, and what one row says.

A row names one segment, or all segments of a film by lists of equal lengths.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reelweave.curate.sources.attributes import number_text
from reelweave.curate.sources.column_names import (
    CAPTION_PARTS,
    CAPTIONS,
    FRAME_PAIRS,
    LISTING,
    NESTED,
    ONE,
    PAIRS,
    is_unread,
    may_matter,
    names_spans,
    plain_name,
    sides_of,
    start_and_length_of,
)
from reelweave.curate.sources.literals import is_literal, literal_of
from reelweave.curate.sources.segments import MAX_SEGMENTS, Unit
from reelweave.curate.sources.times import (
    frame_of,
    is_date,
    is_empty,
    milliseconds_of,
    range_of,
    seconds_of,
)
from reelweave.loader.text import first_text

_SHOWN_CHARS = 60
_READ: Mapping[str, tuple[Unit, Callable[[Any], float]]] = {
    "frame": ("frame", frame_of),
    "ms": ("s", milliseconds_of),
    "s": ("s", seconds_of),
}


class SpanError(Exception):
    """Reason why the spans of a row cannot be read, which names column and value."""


@dataclass(frozen=True)
class ListedSpan:
    """One span as a row names it.

    Attributes:
        start: Start, in `unit`.
        end: End, excluded.
        unit: Seconds or frames.
        caption: Caption, or None.
        columns: Columns of this span alone.
    """

    start: float
    end: float
    unit: Unit
    caption: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Spans:
    """Spans of one row, the columns that they come from, and whether these are lists."""

    bounds: Sequence[tuple[float, float]]
    unit: Unit
    used: frozenset[str]
    many: bool
    own: Sequence[Mapping[str, Any]] = ()


def with_caption_text(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the text of a caption that is an object in its place, and its other parts as columns.

    Captions that are numbers are text.

    Raises:
        SpanError: The object holds no text of a known name.
    """
    changed = dict(columns)
    for column, value in columns.items():
        if plain_name(column) not in ("caption", "captions"):
            continue
        changed[column] = (
            [number_text(caption) for caption in value] if isinstance(value, list) else number_text(value)
        )
        if not isinstance(value, dict) or not value or plain_name(column) != "caption":
            continue
        part = next((name for name in CAPTION_PARTS if first_text(value.get(name))), None)
        if part is None:
            raise SpanError(
                f"column {column} = {_printable_value(value)} is an object without a text {' or '.join(CAPTION_PARTS)}"
            )
        changed[column] = value[part]
        changed |= {f"{column}_{name}": inner for name, inner in value.items() if name != part}
    return changed


def spans_of(row: Mapping[str, Any]) -> tuple[list[ListedSpan], Mapping[str, Any]]:
    """Return the spans that a row names, and its columns that hold for all of them.

    Args:
        row: Columns of the row, without the path.

    Returns:
        No spans, and the row, where none of its columns names any.

    Raises:
        SpanError: A column looks like a span and cannot be read, or lists have different lengths.
    """
    if not any(map(may_matter, row)):
        return [], row
    # Columns of starts and ends, of pairs, or of objects: the first form that fits.
    names = {column: plain_name(column) for column, value in row.items() if not is_empty(value)}
    matched = _from_sides(row, names) or _from_pairs(row, names) or _from_nested(row, names)
    if matched is None:
        _refuse_unread(row, names)
        return [], row
    if not matched.bounds:
        raise SpanError(f"lists no segment in the column {', '.join(sorted(matched.used))}")
    if len(matched.bounds) > MAX_SEGMENTS:
        raise SpanError(f"names {len(matched.bounds)} segments; at most {MAX_SEGMENTS} are read of one film")
    # Other columns hold for the whole film, or have a value for each span.
    count = len(matched.bounds)
    rest = {column: value for column, value in row.items() if column not in matched.used}
    captions: Sequence[str | None] = [None] * count
    captioned = _caption_column(rest, names, matched.many, count)
    if captioned is not None:
        captions = _captions(captioned, rest.pop(captioned), matched.many, count)
    segment_columns = _own_columns(rest, count) if matched.many else {}
    # A nested object's own columns go before those.
    spans = []
    for index, (start, end) in enumerate(matched.bounds):
        columns = {column: values[index] for column, values in segment_columns.items()}
        caption = captions[index]
        if matched.own:
            columns |= matched.own[index]
            inner = _caption_column(columns, {name: plain_name(name) for name in columns}, False, 1)
            caption = first_text(columns.pop(inner)) if inner is not None else caption
        spans.append(ListedSpan(start, end, matched.unit, caption, columns))
    return spans, {column: value for column, value in rest.items() if column not in segment_columns}


def _from_sides(row: Mapping[str, Any], names: Mapping[str, str]) -> _Spans | None:
    """Return the spans of columns such as ``start`` and ``end``: frames before seconds, which are less exact."""
    both, lone = sides_of(tuple(names))
    if both is not None:
        return _zip_spans(row, *both)
    pair_columns = (
        column for column, name in names.items() if PAIRS.fullmatch(name) or FRAME_PAIRS.fullmatch(name)
    )
    if lone is None or next(pair_columns, None) is not None:
        return None
    if (start_and_length := start_and_length_of(tuple(names))) is not None:
        return _from_lengths(row, *start_and_length)
    raise SpanError(
        f"has a column {lone} = {_printable_value(row[lone])} without its other end; give start and end, or start and"
        " duration in one unit"
    )


def _from_lengths(row: Mapping[str, Any], start: str, length: str, kind: str) -> _Spans:
    """Return the spans of columns such as ``start`` and ``duration``."""
    unit, read = _READ[kind]
    starts, lengths = _value(start, row[start]), _value(length, row[length])
    many = isinstance(starts, list | tuple)
    if many != isinstance(lengths, list | tuple):
        raise SpanError(
            f"has a list in one of the columns {start} and {length} only; give each segment its end, or its duration"
        )
    starts, lengths = (starts, lengths) if many else ([starts], [lengths])
    if len(starts) != len(lengths):
        raise SpanError(f"has {len(starts)} values in the column {start} and {len(lengths)} in {length}")
    bounds = []
    for start_value, other in zip(starts, lengths, strict=True):
        begin, duration = _read(start, start_value, read), _read(length, other, read)
        if duration <= 0:
            raise SpanError(f"column {length} = {_printable_value(other)} is no duration")
        bounds.append((begin, round(begin + duration, 9)))
    return _Spans(bounds, unit, frozenset((start, length)), many)


def _zip_spans(row: Mapping[str, Any], start: str, end: str, kind: str) -> _Spans:
    unit, read = _READ[kind]
    starts, ends = _value(start, row[start]), _value(end, row[end])
    many = isinstance(starts, list | tuple)
    if many != isinstance(ends, list | tuple):
        raise SpanError(f"has a list in one of the columns {start} and {end} only")
    starts, ends = (starts, ends) if many else ([starts], [ends])
    if len(starts) != len(ends):
        raise SpanError(f"has {len(starts)} values in the column {start} and {len(ends)} in {end}")
    bounds = [
        _bounds((start, start_value), (end, other), read)
        for start_value, other in zip(starts, ends, strict=True)
    ]
    return _Spans(bounds, unit, frozenset((start, end)), many)


def _from_pairs(row: Mapping[str, Any], names: Mapping[str, str]) -> _Spans | None:
    """Return the spans of a column such as ``timestamp``, whose values are pairs."""
    for column, name in names.items():
        kind = "s" if PAIRS.fullmatch(name) else "frame" if FRAME_PAIRS.fullmatch(name) else None
        if kind is None or is_date(row[column]):
            continue
        if kind == "frame" and not _is_listed(row[column]):  # "frames" is their number in other lists
            continue
        unit, read = _READ[kind]
        pairs, many = _pairs(column, _value(column, row[column]))
        bounds = [_bounds((column, start_value), (column, other), read) for start_value, other in pairs]
        return _Spans(bounds, unit, frozenset((column,)), many)
    return None


def _pairs(column: str, value: Any) -> tuple[list[tuple[Any, Any]], bool]:
    if isinstance(value, str) and (ends := range_of(value)) is not None:
        return [ends], False
    if not isinstance(value, list | tuple):
        raise SpanError(
            f"column {column} = {_printable_value(value)} is no span; write [start, end], or rename the column if it"
            " means something else"
        )
    if len(value) == 2 and not any(isinstance(element, list | tuple) for element in value):
        first, other = value
        if range_of(str(first)) is None:
            return [(first, other)], False
    return [_pair(column, pair) for pair in value], True


def _pair(column: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, str) and (ends := range_of(value)) is not None:
        return ends
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise SpanError(f"column {column} holds {_printable_value(value)}, which is no pair of start and end")
    return value[0], value[1]


def _from_nested(row: Mapping[str, Any], names: Mapping[str, str]) -> _Spans | None:
    """Return the spans of a column such as ``clip`` that lists pairs, or objects with spans of their own."""
    for column, name in names.items():
        if not NESTED.fullmatch(name) or not _is_listed(row[column]):
            continue
        try:
            value = _value(column, row[column])
        except SpanError:
            continue  # text in brackets
        if not isinstance(value, list | tuple) or (not value and not LISTING.fullmatch(name)):
            continue
        if ONE.fullmatch(name) and len(value) == 2 and all(map(_is_time, value)):
            bounds = [_bounds((column, value[0]), (column, value[1]), seconds_of)]
            return _Spans(bounds, "s", frozenset((column,)), False)
        if all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            bounds = [
                _bounds((column, start_value), (column, other), seconds_of) for start_value, other in value
            ]
            return _Spans(bounds, "s", frozenset((column,)), True)
        if (
            value
            and all(isinstance(element, dict) for element in value)
            and any(names_spans(str(name)) for name in value[0])
        ):
            return _objects(column, value)
    return None


def _objects(column: str, value: Sequence[dict[str, Any]]) -> _Spans:
    segments: list[tuple[ListedSpan, dict[str, Any]]] = []
    for position, element in enumerate(value, 1):
        try:
            spans, rest = spans_of(with_caption_text({str(name): inner for name, inner in element.items()}))
        except (SpanError, RecursionError) as error:
            raise SpanError(f"column {column}, element {position}: {error}") from error
        if len(spans) != 1:
            raise SpanError(f"column {column}, element {position} names {len(spans)} spans; give it one")
        caption = {} if spans[0].caption is None else {"caption": spans[0].caption}
        segments.append((spans[0], {**rest, **spans[0].columns, **caption}))
    if len({span.unit for span, _ in segments}) > 1:
        raise SpanError(f"column {column} counts seconds and frames; use one of them")
    bounds = [(span.start, span.end) for span, _ in segments]
    return _Spans(
        bounds,
        segments[0][0].unit,
        frozenset((column,)),
        True,
        [segment_columns for _, segment_columns in segments],
    )


def _bounds(
    start: tuple[str, Any], end: tuple[str, Any], read: Callable[[Any], float]
) -> tuple[float, float]:
    bounds = _read(*start, read), _read(*end, read)
    if bounds[0] >= bounds[1]:
        raise SpanError(
            f"columns {start[0]} = {_printable_value(start[1])} and {end[0]} = {_printable_value(end[1])}: the end is"
            " not after the start"
        )
    return bounds


def _read(column: str, value: Any, read: Callable[[Any], float]) -> float:
    try:
        return read(value)
    except (ValueError, ArithmeticError) as error:
        raise SpanError(f"column {column} = {_printable_value(value)} {error}") from error


def _refuse_unread(row: Mapping[str, Any], names: Iterable[str]) -> None:
    for column in names:
        if is_unread(column):
            raise SpanError(
                f"column {column} = {_printable_value(row[column])} looks like a span, in a unit that is not read; name"
                " it start_s, start_ms or start_frame, or otherwise if it means something else"
            )


def _caption_column(rest: Mapping[str, Any], names: Mapping[str, str], many: bool, count: int) -> str | None:
    """Return the column with captions; of several segments only ``caption`` may be no list."""
    by_name = {names[column]: column for column in reversed(list(rest)) if column in names}
    for name in CAPTIONS:
        column = by_name.get(name)
        if column is None:
            continue
        if name == "caption" or not many or count == 1 or _is_listed(rest[column]):
            return column
    return None


def _captions(column: str, value: Any, many: bool, count: int) -> list[str | None]:
    if not many:
        return [first_text(_parse_list(value)) or None]
    texts = _parse_list(value)
    if isinstance(texts, str) and count == 1:
        return [texts]
    if not isinstance(texts, list | tuple):
        raise SpanError(f"column {column} holds one caption for {count} segments; give a list of captions")
    if len(texts) != count:
        raise SpanError(f"has {count} spans and {len(texts)} captions in the column {column}")
    return [first_text(text) or None for text in texts]


def _own_columns(rest: Mapping[str, Any], count: int) -> dict[str, Sequence[Any]]:
    """Return the columns that hold a list with a value for each segment."""
    segment_columns: dict[str, Sequence[Any]] = {}
    for column, value in rest.items():
        if (
            _is_listed(value)
            and isinstance(listed := _parse_list(value), list | tuple)
            and len(listed) == count
        ):
            segment_columns[column] = listed
    return segment_columns


def _is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, str) and is_literal(value))


def _parse_list(value: Any) -> Any:
    """Return the list that a text holds, or the text itself: captions may be in brackets."""
    if isinstance(value, str) and is_literal(value):
        try:
            return literal_of(value)
        except ValueError:
            return value
    return value


def _value(column: str, value: Any) -> Any:
    if not isinstance(value, str) or not is_literal(value):
        return value
    try:
        return literal_of(value)
    except ValueError as error:
        raise SpanError(f"column {column} = {_printable_value(value)} {error}") from error


def _is_time(value: Any) -> bool:
    try:
        seconds_of(value)
    except (ValueError, ArithmeticError):
        return False
    return True


def _printable_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
