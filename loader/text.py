"""Words of a caption, the token unit of the offline text encoder; and counted nouns of our own sentences."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

# In scripts without spaces a sentence would be one word, so each character counts as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MOST_TEXTS = 100
"""Entries of a list that are examined for texts."""

_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def _iterate(text: str) -> Iterator[str]:
    return (match.group() for match in _WORD.finditer(unicodedata.normalize("NFC", text).lower()))


def words(text: str, limit: int | None = None) -> list[str]:
    """Return the lower-case words of ``text`` in order: runs of letters, digits and ``_``; at most ``limit``.

    Equal strings in different Unicode compositions give equal words. Each Chinese character or kana is a word;
    punctuation is dropped.
    """
    return list(islice(_iterate(text), limit))


def count_tokens(text: str) -> int:
    """Return the number of ``words`` in ``text``."""
    return sum(1 for _ in _iterate(text))


def pluralize(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: ``1 clip``, ``1,024 clips``.

    Args:
        count: Number of things.
        noun: Their name in the singular, with what follows it.
        nouns: The same in the plural, where it is not made by an "s".
    """
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def first_text(value: Any, fields: Sequence[str] = (), depth: int = 3) -> str:
    """Return the first text in a JSON value that is not blank: the value, or one in a list, or in an object; or "".

    Args:
        value: Parsed JSON.
        fields: Names of the fields that count in an object, by preference.
        depth: Levels of lists and objects that are entered.
    """
    if isinstance(value, str):
        return value if value.replace("\0", " ").strip() else ""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [value.get(name) for name in fields]
    elif isinstance(value, list):
        inner = value[:MOST_TEXTS]
    return next(filter(None, (first_text(element, fields, depth - 1) for element in inner if depth)), "")


def texts_of(value: Any, fields: Sequence[str] = ()) -> list[str]:
    """Return every text of a list that is not blank, at most `MOST_TEXTS`; of any other value its first text, if any.

    Args:
        value: Parsed JSON.
        fields: As of `first_text`.
    """
    depth = 3  # as of `first_text`
    if isinstance(value, dict):
        depth -= 1
        value = next((value[name] for name in fields if first_text(value.get(name), fields, depth)), None)
    if isinstance(value, list | tuple):
        return [text for element in value[:MOST_TEXTS] if (text := first_text(element, fields, depth - 1))]
    return [text] if (text := first_text(value, fields, depth)) else []
