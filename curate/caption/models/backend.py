"""Interface of text generation models: questions, answers and the backend protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.caption.models.cleaning import clean
from reelweave.curate.models.clip_frames import Fault

TOP_P = 0.9
"""Share of the likelihood that servers draw from, for a temperature above 0."""


@dataclass(frozen=True)
class Ask:
    """One question to a model.

    Attributes:
        prompt: Text of the question.
        pictures: uint8 [n, height, width, 3] RGB; None for a text model.
        times_s: Display times of the pictures, seconds after the first frame of the window.
        duration_s: Duration of the window.
        max_new_tokens: Maximum length of the answer.
        temperature: Sampling temperature; 0 is greedy decoding.
        seed: Random seed for a temperature above 0.
        structured: True where the answer is to be JSON (`reelweave.curate.caption.structured`).
        terms: Measured movement of the camera, which the answer must not contradict.
        files: The pictures as JPEG files, where they were encoded ahead; ``pictures`` is empty then.
    """

    prompt: str
    pictures: NDArray[np.uint8] | None
    times_s: tuple[float, ...]
    duration_s: float
    max_new_tokens: int
    temperature: float
    seed: int
    structured: bool = False
    terms: tuple[str, ...] = ()
    files: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Draft:
    """One answer of a model, not checked yet.

    Attributes:
        text: Answer as `reelweave.curate.caption.models.cleaning.clean` returns it.
        stopped: True when the model ended by itself, rather than at ``max_new_tokens``.
        tokens_in: Tokens of prompt and pictures.
        tokens_out: Tokens of the answer.
        filtered: True when a filter of the server ended the answer.
    """

    text: str
    stopped: bool
    tokens_in: int
    tokens_out: int
    filtered: bool = False


class Backend(Protocol):
    """Text generation model, loaded on first use."""

    def check(self) -> None:
        """Check that the model is available.

        Raises:
            UsageError: The model is not available; the message says what to do.
        """

    def identity(self) -> Mapping[str, str]:
        """Return the model's name, digests of configuration and weights, and the runtime."""

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """Return an answer for each question; a `Fault` for a question that the model cannot process."""


Follow = Callable[[int, Draft | Fault], Ask | None]
"""Takes the answer to a question, by its index, and returns what to ask next about it, or None."""


@runtime_checkable
class ServedBackend(Protocol):
    """Model that answers each question in its own time, so that none has to wait for the others of a call."""

    def pursue(self, asks: Sequence[Ask], follow: Follow) -> None:
        """Ask all questions, and for each what follows from its answer, until nothing does.

        Args:
            asks: Questions.
            follow: Called in several threads.
        """


def draft(text: str, stopped: bool, tokens_in: int, tokens_out: int, filtered: bool = False) -> Draft:
    """Build a `Draft` from the text of a model, cleaned."""
    return Draft(clean(text), stopped, tokens_in, tokens_out, filtered)
