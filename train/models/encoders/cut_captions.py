"""Captions that a text encoder cuts off, counted as they come."""

from collections.abc import Sequence

from reelweave.train.models.encoders.text import TextEncoder


class CutCaptions:
    """Count of captions of which the end is cut off.

    Args:
        text: encoder of the captions.
    """

    def __init__(self, text: TextEncoder) -> None:
        self._text, self._seen, self._cut, self._next = text, 0, 0, 1

    def add(self, captions: Sequence[str]) -> str | None:
        """Count captions; return a sentence for the first one that is cut off, and at 10, 100, 1,000 and so on."""
        self._seen += len(captions)
        self._cut += sum(self._text.cut(captions))
        if self._cut < self._next:
            return None
        while self._next <= self._cut:
            self._next *= 10
        return (
            f"{self._cut:,} of {self._seen:,} captions so far have more than text.max_text_tokens ="
            f" {self._text.most_tokens} tokens; the rest of each is cut off"
        )
