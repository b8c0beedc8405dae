"""Captions that text encoders cut off, counted as they come."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from reelweave.train.models.encoders.text import TextEncoder


class TextLimit(NamedTuple):
    """Limit of one encoder of captions.

    Attributes:
        key: key of the configuration that sets it.
        tokens: number of tokens of a caption in use.
        cut: function from captions to whether each has more.
    """

    key: str
    tokens: int
    cut: Callable[[Sequence[str]], list[bool]]


def text_limits(text: TextEncoder) -> list[TextLimit]:
    """Return the limits of a text encoder: of its context, and of pooled captions where it has them."""
    limits = [TextLimit("text.max_text_tokens", text.most_tokens, text.cut)]
    if text.most_pooled_tokens:
        limits.append(TextLimit("text.pooled.max_text_tokens", text.most_pooled_tokens, text.cut_pooled))
    return limits


class CutCaptions:
    """Count of captions of which the end is cut off, for each encoder of them.

    Args:
        text: encoder of the captions.
    """

    def __init__(self, text: TextEncoder) -> None:
        self._counts = [_CutCount(limit) for limit in text_limits(text)]

    def add(self, captions: Sequence[str]) -> str | None:
        """Count captions; return a sentence for the first one that is cut off, and at 10, 100, 1,000 and so on."""
        sentences = [sentence for count in self._counts if (sentence := count.add(captions))]
        return "; ".join(sentences) or None


class _CutCount:
    """Count of captions that one encoder cuts off."""

    def __init__(self, limit: TextLimit) -> None:
        self._limit, self._seen, self._cut, self._next = limit, 0, 0, 1

    def add(self, captions: Sequence[str]) -> str | None:
        """Count captions; return a sentence as `CutCaptions.add` does."""
        self._seen += len(captions)
        self._cut += sum(self._limit.cut(captions))
        if self._cut < self._next:
            return None
        while self._next <= self._cut:
            self._next *= 10
        return (
            f"{self._cut:,} of {self._seen:,} captions so far have more than {self._limit.key} ="
            f" {self._limit.tokens} tokens; the rest of each is cut off"
        )
