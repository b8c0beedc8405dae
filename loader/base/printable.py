"""Escaping of untrusted text for terminals: no control codes, cursor movements or reversed text."""

import re

# Controls (C0, DEL, C1), line separators, surrogates, and invisible characters: direction marks, tags, and zero-width
# letters except for the two that join letters and emoji.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""Escape every character that a terminal might obey or hide, as Python would: ``\x1b``, ``\u202e``, ``\n``.

    Args:
        text: text of a file name, tag, caption, address, or error of another library.
        keep: characters to leave unchanged.
    """
    return _UNSEEN.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def printable_json(text: str) -> str:
    r"""Escape the characters of `printable` in a JSON document, as JSON escapes; its values stay the same."""
    return _UNSEEN.sub(lambda match: match[0] if match[0] == "\n" else _json_escaped(match[0]), text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


def _json_escaped(char: str) -> str:
    pairs = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pairs[index : index + 4]}" for index in range(0, len(pairs), 4))
