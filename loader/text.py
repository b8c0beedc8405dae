"""Words of a caption: the unit in which the offline path counts and embeds text."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

# Scripts written without spaces would make a sentence one word: there, a character is a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def _iterate(text: str) -> Iterator[str]:
    return (match.group() for match in _WORD.finditer(unicodedata.normalize("NFC", text).lower()))


def words(text: str, limit: int | None = None) -> list[str]:
    """Lower-case words of ``text`` in order: runs of letters, digits and ``_``; at most ``limit`` of them.

    Equal strings in different Unicode compositions give equal words. A Chinese character or a kana is a
    word by itself; punctuation gives none.
    """
    return list(islice(_iterate(text), limit))


def count_tokens(text: str) -> int:
    """The number of ``words`` in ``text``."""
    return sum(1 for _ in _iterate(text))
