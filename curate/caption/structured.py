"""Structured captions: JSON with one text for each of a few fields."""

import json

from reelweave.curate.caption.prompts import FIELDS

MOST_FIELD_CHARS = 1000
"""Characters of one field."""


def parse_structured(text: str) -> dict[str, str] | None:
    """Return the fields of a structured caption, in their order; None where the answer is none.

    Exactly `FIELDS` are expected, each with a text of at most `MOST_FIELD_CHARS` characters; no text stands around.

    Args:
        text: Answer of a model, cleaned.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.keys() != set(FIELDS):
        return None
    fields = {name: value[name] for name in FIELDS}
    return fields if all(map(_is_field, fields.values())) else None


def write_structured(fields: dict[str, str]) -> str:
    """Return fields as the JSON that a dataset holds: one line, keys in their order."""
    # JSON may spell half a surrogate pair, which UTF-8 cannot encode.
    plain = {
        name: " ".join(text.encode("utf-8", "replace").decode().split()) for name, text in fields.items()
    }
    return json.dumps(plain, ensure_ascii=False)


def _is_field(value: object) -> bool:
    return isinstance(value, str) and len(value.strip()) > 0 and len(value) <= MOST_FIELD_CHARS
