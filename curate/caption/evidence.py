"""Evidence beside the pictures of a question: measured movement of the camera, and words that came with the video."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reelweave.curate.caption.camera_terms import describe_terms
from reelweave.curate.caption.prompts import CAMERA_EVIDENCE, WORDS_EVIDENCE

MOST_CHARS = 300
"""Characters of one column that a question shows."""

_ESCAPED = {char: f"\\u{ord(char):04x}" for char in "<>[]|`"}
"""Characters that begin marks of chat templates and of Markdown; JSON spells them otherwise, too."""


@dataclass(frozen=True)
class Evidence:
    """Evidence of a clip that a question gives a model beside its pictures.

    Attributes:
        terms: Measured movement of the camera; () where it is not told.
        words: Columns of the input list by name, as strangers wrote them.
    """

    terms: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Evidence as it stands before the question; "" without any."""
        parts = []
        if self.terms:
            parts.append(f"{CAMERA_EVIDENCE} {describe_terms(self.terms)}.")
        if self.words:
            parts.append(f"{WORDS_EVIDENCE}\n{quote(dict(self.words))}")
        return "".join(f"{part}\n\n" for part in parts)

    def provenance(self) -> dict[str, str]:
        """Return what a caption's provenance holds of it."""
        camera = {"camera_terms": " ".join(self.terms)} if self.terms else {}
        return camera | ({"evidence": " ".join(name for name, _ in self.words)} if self.words else {})


NO_EVIDENCE = Evidence()


def chosen_words(attributes: Mapping[str, str], columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the columns of a clip that a question shows, each shortened, in the order that was asked for."""
    texts = {name: _plain(attributes.get(name, "")) for name in columns}
    return tuple((name, text) for name, text in texts.items() if text)


def quote(words: Mapping[str, str]) -> str:
    """Return strangers' words as one line of JSON that no chat template reads as a mark of its own."""
    text = json.dumps(dict(words), ensure_ascii=False)
    return "".join(_ESCAPED.get(char, char) for char in text)


def _plain(text: str) -> str:
    """Return a text with single blanks, without control and format characters, shortened."""
    visible = "".join(
        " " if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char for char in text
    )
    return " ".join(visible.split())[:MOST_CHARS]
