"""Lists inside a cell, in JSON or as Python prints them, read without evaluating anything."""

import ast
import json
import re
import warnings
from typing import Any

MAX_LITERAL_CHARS = 1 << 17
MAX_LITERAL_DEPTH = 8

_TOKEN = re.compile(
    r"""\s+|[\[({]|[\])}]|[,:]|(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"""
    r"|(?:None|True|False)\b",
    re.DOTALL,
)


def is_literal(text: str) -> bool:
    """Return True if a text looks like a list: it begins and ends with brackets."""
    text = text.strip()
    return text[:1] in ("[", "(", "{") and text[-1:] in ("]", ")", "}")


def literal_of(text: str) -> Any:
    """Return the value of a list in JSON or of a Python literal of plain values.

    Raises:
        ValueError: The text is none, too long, or nested too deeply; the words say which.
    """
    text = text.strip()
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError(f"has {len(text)} characters; lists of at most {MAX_LITERAL_CHARS} are read")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError:
        _check(text)
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes such as \d in somebody's caption
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("is no list in JSON or Python") from None


def _check(text: str) -> None:
    """Check that a text holds plain values between commas, so that no expression is parsed.

    numpy prints arrays without commas, which Python reads as joined texts or as an index.
    """
    at, depth, after_value = 0, 0, False
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"is no list in JSON or Python (at character {at + 1})")
        part, at = token[0], token.end()
        if part.isspace():
            continue
        if part in ",:":
            after_value = False
            continue
        closes = part in "])}"
        if after_value and not closes:
            raise ValueError(f"lacks a comma between two values (before character {at})")
        depth += (part in "[({") - closes
        if not 0 <= depth <= MAX_LITERAL_DEPTH:
            raise ValueError("is nested too deeply" if depth > 0 else "closes a bracket that it did not open")
        after_value = part not in "[({"
