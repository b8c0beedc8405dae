"""Times and numbers of frames as lists write them."""

import datetime
import decimal
import math
import re
from typing import Any

MAX_TIME_S = 1e7
MAX_FRAME = 1 << 40

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_CODE = re.compile(r"(?:(\d{1,4}):)?(\d{1,4}):(\d{1,2}(?:[.,]\d{1,12})?)")
_RANGE = re.compile(r"([\d:.,]+)\s*(?:-->|--|-|–|~|to)\s*([\d:.,]+)")  # noqa: RUF001
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?!\d)")


def is_empty(value: Any) -> bool:
    """Return True for a cell without a value."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_date(value: Any) -> bool:
    """Return True for a day of the calendar, which is no time within a film."""
    return isinstance(value, datetime.date) or (isinstance(value, str) and bool(_DATE.match(value.strip())))


def seconds_of(value: Any) -> float:
    """Return seconds of a number, its text, or a time code: ``HH:MM:SS.mmm``, ``MM:SS`` (or with a comma).

    Raises:
        ValueError: The value is no such time; the words say why.
    """
    seconds = _seconds(value)
    if not 0 <= seconds <= MAX_TIME_S:  # also when it is no number
        raise ValueError(f"lies outside 0 to {MAX_TIME_S:g} s")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):
        return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    if isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        raise ValueError("is no time")
    text = value.strip()
    if _NUMBER.fullmatch(text.removesuffix("s").strip()):
        return float(text.removesuffix("s"))
    match = _CODE.fullmatch(text)
    if match is None:
        if text.count(":") == 3 or ";" in text:
            raise ValueError("is a time code with a number of frames; write HH:MM:SS.mmm, or use start_frame")
        raise ValueError("is no time; write seconds or HH:MM:SS.mmm")
    hours, minutes, seconds = match[1] or "0", int(match[2]), float(match[3].replace(",", "."))
    if seconds >= 60 or (match[1] and minutes >= 60):
        raise ValueError("has 60 or more minutes or seconds")
    return int(hours) * 3600 + minutes * 60 + seconds


def milliseconds_of(value: Any) -> float:
    """Return seconds of a number of milliseconds; see `seconds_of`."""
    if isinstance(value, str) and ":" in value:
        raise ValueError("is a time code in a column of milliseconds")
    return seconds_of(_seconds(value) / 1000)


def frame_of(value: Any) -> float:
    """Return the number of a frame, whole and from 0.

    Raises:
        ValueError: The value is no such number.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise ValueError("is no number of a frame")
    if not 0 <= value <= MAX_FRAME or value != int(value):
        raise ValueError("is no number of a frame, which is whole and counted from 0")
    return float(value)


def range_of(text: str) -> tuple[str, str] | None:
    """Return start and end of a range such as ``00:05 - 00:09``, or None for other text."""
    match = _RANGE.fullmatch(text.strip())
    return (match[1], match[2]) if match else None
