"""Commands as one line of a shell, whatever the names in them hold."""

import shlex
from collections.abc import Iterable


def shell_line(words: Iterable[str]) -> str:
    """Return words as one printable line that a shell splits into the same words.

    Line breaks, control characters and bytes that are no UTF-8 become ``$'...'``, which bash, zsh and ksh know.
    """
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escape_word(word)}'" for word in words)


def _escape_word(word: str) -> str:
    return "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else _in_bytes(char) for char in word
    )


def _in_bytes(char: str) -> str:
    # A name's byte that is no UTF-8 is half a surrogate pair in Python; any other half stands for no byte.
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "replace"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", errors))
