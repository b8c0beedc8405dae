"""Columns of a list as text: captions and attributes, bounded and in UTF-8."""

import datetime
import decimal
import json
import math
from collections.abc import Mapping
from typing import Any

MAX_CAPTION_CHARS = 64_000
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_CHARS = 4000
MAX_NAME_CHARS = 100

_SPELLINGS = {"license": "licence"}


def attributes_of(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return columns as attributes; binary and large nested values are left out."""
    attributes: dict[str, str] = {}
    for name, value in columns.items():
        text = _text(value)
        name = _SPELLINGS.get(name.lower(), name.lower() if name.lower() == "licence" else name)
        if text and name and len(name) <= MAX_NAME_CHARS and len(attributes) < MAX_ATTRIBUTES:
            attributes.setdefault(clean(name), clean(text[:MAX_ATTRIBUTE_CHARS]))
    return attributes


def number_text(value: Any) -> Any:
    """Return the text of a number, or any other value as it is."""
    return _text(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list | dict) and value:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (RecursionError, TypeError):  # nested too deeply for JSON output, or with dates inside
            return ""
        return text if len(text) <= MAX_ATTRIBUTE_CHARS else ""
    return ""


def clean(text: str) -> str:
    """Replace characters that UTF-8 cannot encode: JSON may contain half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
