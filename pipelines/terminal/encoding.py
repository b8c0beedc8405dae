"""Refusal of arguments that are no text here, which tables, JSON and Ray could not hold."""

import os
from collections.abc import Iterable
from urllib.parse import quote

from reelweave.loader.errors import UsageError


def check_encoding(words: Iterable[str]) -> None:
    """Check that each word of a command line is text.

    Raises:
        UsageError: one is not UTF-8, or the locale of the terminal holds ASCII alone.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(_describe(word)) from None


def _describe(word: str) -> str:
    data = os.fsencode(word)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return (
            f"{word} is not UTF-8: rename it or, where it is an input of curate, give the folder that holds it; a path"
            f" may be written as file://{quote(os.path.abspath(data))}"  # noqa: PTH100 - of bytes
        )
    return (
        f"{text} has letters that this terminal's locale does not have: set LANG=C.UTF-8 or PYTHONUTF8=1, and run the"
        " same command again"
    )
