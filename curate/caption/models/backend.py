"""What a model that writes is asked, and what it answers, whatever runs it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from curate.models.clip_frames import Fault

_THOUGHTS = re.compile(r"^.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Ask:
    """One question.

    Attributes:
        prompt: in words.
        pictures: uint8 [n, height, width, 3] RGB; None for a text model.
        times_s: when each picture is shown, seconds after the first frame the model is asked about.
        duration_s: of what the pictures show.
        max_new_tokens: of the answer.
        temperature: 0 takes the likeliest token each time.
        seed: of the draw, where the temperature is higher.
    """

    prompt: str
    pictures: NDArray[np.uint8] | None
    times_s: tuple[float, ...]
    duration_s: float
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Draft:
    """One answer.

    Attributes:
        text: with single blanks, without the thoughts of models that think aloud.
        stopped: the model ended by itself, rather than at ``max_new_tokens``.
        tokens_in: of prompt and pictures.
        tokens_out: written.
    """

    text: str
    stopped: bool
    tokens_in: int
    tokens_out: int


class Backend(Protocol):
    """A model that writes, loaded at its first use."""

    def check(self) -> None:
        """Finds out whether the model can be had.

        Raises:
            UsageError: it cannot, and what to do.
        """

    def identity(self) -> Mapping[str, str]:
        """What the model is: name, digests of configuration and weights, and what runs it."""

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """An answer for each; a question the model cannot take gives a `Fault`."""


def draft(text: str, stopped: bool, tokens_in: int, tokens_out: int) -> Draft:
    """A `Draft` of what a model wrote, cleaned."""
    return Draft(" ".join(_THOUGHTS.sub("", text).split()), stopped, tokens_in, tokens_out)
