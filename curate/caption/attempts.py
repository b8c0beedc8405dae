"""Asking a model until its answers are good: again only for the failures, each time a little differently."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from curate.caption.checks import CHECKS, FaultName, faults
from curate.caption.config import CaptionConfig
from curate.caption.models.backend import Ask, Backend, Draft
from curate.models.clip_frames import Fault

_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Answer:
    """A good answer.

    Attributes:
        text: of it.
        ask: the question as asked last.
        attempts: how often it was asked.
        tokens_in: read in all attempts.
        tokens_out: written in all attempts.
    """

    text: str
    ask: Ask
    attempts: int
    tokens_in: int
    tokens_out: int


def answered(asks: Sequence[Ask], model: Backend, config: CaptionConfig) -> list[Answer | Fault]:
    """A good answer for each question, or why there is none after ``config.max_attempts``."""
    results: dict[int, Answer | Fault] = {}
    open_asks = dict(enumerate(asks))
    spent = dict.fromkeys(open_asks, (0, 0))
    for attempt in range(1, config.max_attempts + 1):
        if not open_asks:
            break
        drafts = model(list(open_asks.values()))
        for (number, ask), found in zip(list(open_asks.items()), drafts, strict=True):
            del open_asks[number]
            if isinstance(found, Fault):
                results[number] = found
                continue
            spent[number] = (spent[number][0] + found.tokens_in, spent[number][1] + found.tokens_out)
            names = wrong(found, config)
            if not names:
                results[number] = Answer(found.text, ask, attempt, *spent[number])
            elif attempt == config.max_attempts:
                results[number] = _fault(found, names, attempt)
            else:
                open_asks[number] = again(ask, names, config)
    return [results[number] for number in range(len(asks))]


def wrong(found: Draft, config: CaptionConfig) -> tuple[FaultName, ...]:
    """The faults of an answer; with ``config.checks`` off only an empty one is faulty."""
    names = faults(found.text, found.stopped, config.min_words, config.max_chars)
    return names if config.checks else tuple(name for name in names if name == "empty")


def again(ask: Ask, names: Sequence[FaultName], config: CaptionConfig) -> Ask:
    """The next question after a faulty answer: another seed, drawn tokens, and more of them if they ran out."""
    return replace(
        ask,
        seed=ask.seed + 1,
        temperature=max(ask.temperature, config.retry_temperature),
        max_new_tokens=ask.max_new_tokens * (2 if "truncated" in names else 1),
    )


def _fault(found: Draft, names: Sequence[FaultName], attempts: int) -> Fault:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    said = " and ".join(CHECKS[name] for name in names)
    text = found.text if len(found.text) <= _SHOWN_CHARS else found.text[:_SHOWN_CHARS] + " ..."
    return Fault(f"the model gave no good caption in {tries}; in the last one {said}: {text!r}")
