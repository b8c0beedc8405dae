"""Checks of a model's caption by its text alone.

The checks are conservative: they detect the typical failures of models, in any language, and accept a merely
dull caption.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from reelweave.curate.caption.no_caption import (
    SENTENCE_ENDS,
    has_thoughts,
    is_conversation,
    is_error,
    refuses,
    repeats_question,
)
from reelweave.curate.caption.prompts import FIELDS

FaultName = Literal[
    "empty", "garbled", "short", "long", "refusal", "error", "thoughts", "conversation", "echo", "repetition",
    "filtered", "structured", "camera", "truncated",
]  # fmt: skip

CHECKS: dict[FaultName, str] = {
    "empty": "it wrote nothing",
    "garbled": "it wrote something that is no text",
    "short": "it wrote too few words",
    "long": "it wrote too much",
    "refusal": "it refused",
    "error": "it gave an error in words",
    "thoughts": "it left its thoughts, or marks of them, in the answer",
    "conversation": "it wrote turns of a conversation",
    "echo": "it repeated the question",
    "repetition": "it repeated itself",
    "filtered": "a filter of the server ended it",
    "structured": f"it did not write JSON of the texts {', '.join(FIELDS)}",
    "camera": "it said of the camera what the measured movement contradicts",
    "truncated": "it did not come to an end",
}
"""Names of the faults in the order of checking, with their descriptions."""

# Scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Python's \w leaves out the vowel signs of Indic scripts and the accents of Hebrew and Arabic.
_SIGNS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_UNITS = re.compile(f"[{_DENSE}]|(?:[^\\W{_DENSE}]|[{_SIGNS}])+")
_DENSE_UNIT = re.compile(f"[{_DENSE}]")
_SPECIAL = re.compile(r"<\|[\w ]{1,40}\|>|<(?:unk|pad|s|/s|image|video|bos|eos)>|\[(?:PAD|UNK|CLS|SEP)\]")
_SENTENCE = re.compile(rf"(?<=[{SENTENCE_ENDS}])\s*")

# (maximum length of a loop, consecutive repeats that make a fault), in words, then in characters of dense scripts.
_WORD_LOOPS = ((1, 6), (2, 5), (4, 4), (40, 3))
_CHARACTER_LOOPS = ((2, 8), (5, 5), (11, 4), (60, 3))
_PHRASE, _PHRASE_SHARE, _PHRASE_UNITS = 6, 0.5, 60


def faults(
    text: str, stopped: bool, min_words: int, max_chars: int, question: str = "", filtered: bool = False
) -> tuple[FaultName, ...]:
    """Return the names of all faults of a caption, in the order of `CHECKS`; () for a good one.

    Args:
        text: Caption with single blanks.
        stopped: True when the model ended by itself. An answer at the maximum of tokens is truncated even if its last
            sentence is whole, since more was to come.
        min_words: Minimum number of words; two characters count as a word in scripts without blanks.
        max_chars: Maximum number of characters.
        question: Instruction that the model was given.
        filtered: True when a filter of the server ended the answer.
    """
    if not any(char.isalnum() for char in text):
        return ("garbled",) if len(text) > 2 else ("empty",)
    units = _UNITS.findall(text.lower())
    dense = sum(1 for unit in units if _DENSE_UNIT.fullmatch(unit))
    present: dict[FaultName, bool] = {
        "garbled": _garbled(text),
        "short": len(units) - dense + dense / 2 < min_words,
        "long": len(text) > max_chars,
        "refusal": refuses(text),
        "error": is_error(text),
        "thoughts": has_thoughts(text),
        "conversation": is_conversation(text),
        "echo": repeats_question(text, question),
        "repetition": _repeats(text, units, dense),
        "filtered": filtered,
        "truncated": not stopped,
    }
    return tuple(name for name in CHECKS if present.get(name))


def _garbled(text: str) -> bool:
    """Return True for special tokens, broken UTF-8, or mostly signs instead of letters."""
    visible = [char for char in text if not char.isspace()]
    kinds = [unicodedata.category(char) for char in visible]
    broken = sum(
        1
        for char, kind in zip(visible, kinds, strict=True)
        if char == "\ufffd" or kind in ("Cc", "Co", "Cn", "Cs")
    )
    letters = sum(1 for kind in kinds if kind[0] in "LMN")
    return bool(_SPECIAL.search(text)) or broken * 50 > len(visible) or letters * 2 < len(visible)


def _repeats(text: str, units: Sequence[str], dense: int) -> bool:
    """Return True for a loop, one sentence in a third of all (at least three), or a long text of few phrases."""
    # A counter in a loop ("frame 1: ... frame 2: ...") makes every repeat slightly different.
    plain = ["#" if unit.isdecimal() else unit for unit in units]
    loops = _CHARACTER_LOOPS if dense * 2 > len(units) else _WORD_LOOPS
    return _loops(plain, loops) or _sentences_repeat(text) or _phrases_repeat(plain)


def _loops(units: Sequence[str], loops: Sequence[tuple[int, int]]) -> bool:
    for length in range(1, min(loops[-1][0], len(units) // 3) + 1):
        min_repeats = next(repeats for longest, repeats in loops if length <= longest)
        run = 0
        for at in range(length, len(units)):
            run = run + 1 if units[at] == units[at - length] else 0
            # A list of numbers in the picture is no loop.
            if run >= length * (min_repeats - 1) and any(
                unit != "#" for unit in units[at - length + 1 : at + 1]
            ):
                return True
    return False


def _sentences_repeat(text: str) -> bool:
    sentences = [part.strip().lower() for part in _SENTENCE.split(text)]
    long = [part for part in sentences if len(part) >= 12]
    return any(long.count(part) >= max(3, len(long) / 3) for part in set(long))


def _phrases_repeat(units: Sequence[str]) -> bool:
    if len(units) < _PHRASE_UNITS:
        return False
    phrases = [tuple(units[at : at + _PHRASE]) for at in range(len(units) - _PHRASE + 1)]
    return len(set(phrases)) < (1 - _PHRASE_SHARE) * len(phrases)
