"""Words of a caption: the token unit of the offline text encoder."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

# In scripts without spaces a sentence would be one word, so each character counts as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
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
