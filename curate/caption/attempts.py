"""Retries of a model until its answers pass the checks; only failures are retried, with another seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reelweave.curate.caption.camera_terms import contradicts
from reelweave.curate.caption.checks import CHECKS, FaultName, faults
from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.models.backend import Ask, Backend, Draft, ServedBackend
from reelweave.curate.caption.models.cleaning import without_echo
from reelweave.curate.caption.structured import parse_structured, write_structured
from reelweave.curate.models.clip_frames import Fault

_SHOWN_CHARS = 80


@dataclass(frozen=True)
class AcceptedAnswer:
    """Answer that passed the checks.

    Attributes:
        text: Text of the answer.
        ask: Last version of the question.
        attempts: Number of attempts.
        tokens_in: Input tokens of all attempts.
        tokens_out: Output tokens of all attempts.
        contradicts: True where it contradicts the measured movement of the camera, as all attempts did.
    """

    text: str
    ask: Ask
    attempts: int
    tokens_in: int
    tokens_out: int
    contradicts: bool = False


def accepted_answers(
    asks: Sequence[Ask], model: Backend, config: CaptionConfig
) -> list[AcceptedAnswer | Fault]:
    """Return an accepted answer for each question, or the fault after ``config.max_attempts``."""
    attempts = _Attempts(asks, config)
    if isinstance(model, ServedBackend):
        model.pursue(asks, attempts.follow)
        return attempts.results()
    open_asks = dict(enumerate(asks))
    while open_asks:
        # All open questions at once, so that the model batches them.
        drafts = model(list(open_asks.values()))
        following = {
            index: attempts.follow(index, draft) for index, draft in zip(open_asks, drafts, strict=True)
        }
        open_asks = {index: ask for index, ask in following.items() if ask is not None}
    return attempts.results()


class _Attempts:
    """Attempts at questions, each of which is followed by itself: threads share no entry.

    Args:
        asks: Questions.
        config: Caption settings.
    """

    def __init__(self, asks: Sequence[Ask], config: CaptionConfig) -> None:
        self._config, self._asks = config, list(asks)
        self._attempt, self._spent = [0] * len(asks), [(0, 0)] * len(asks)
        self._contradicting: list[AcceptedAnswer | None] = [None] * len(asks)
        self._results: list[AcceptedAnswer | Fault | None] = [None] * len(asks)

    def follow(self, index: int, draft: Draft | Fault) -> Ask | None:
        """Take an answer; return the question again where it is faulty and attempts are left."""
        config, ask = self._config, self._asks[index]
        if isinstance(draft, Fault):
            self._results[index] = draft
            return None
        self._attempt[index] += 1
        attempt = self._attempt[index]
        # Tokens of all attempts count, also of those that were not accepted.
        before_in, before_out = self._spent[index]
        spent = self._spent[index] = (before_in + draft.tokens_in, before_out + draft.tokens_out)
        draft = replace(draft, text=without_echo(draft.text, ask.prompt))
        draft, names = _check_draft(draft, ask, config)
        answer = AcceptedAnswer(draft.text, ask, attempt, *spent, bool(names))
        if names == ("camera",):  # of no other fault: better than no caption
            self._contradicting[index] = self._contradicting[index] or answer
        if not names:
            self._results[index] = answer
        elif attempt < config.max_attempts:
            self._asks[index] = retry(ask, names, config)
            return self._asks[index]
        else:
            self._results[index] = self._contradicting[index] or _fault(draft, names, attempt)
        return None

    def results(self) -> list[AcceptedAnswer | Fault]:
        """Return the result of each question, after the last answer."""
        assert None not in self._results
        return [result for result in self._results if result is not None]


def _check_draft(draft: Draft, ask: Ask, config: CaptionConfig) -> tuple[Draft, tuple[FaultName, ...]]:
    """Return an answer as it is stored, and its faults; those of JSON are those of its texts."""
    if not ask.structured:
        return draft, _faults(draft, ask, config)
    fields = parse_structured(draft.text)
    if fields is None:
        # What it wrote instead, such as a refusal, says more.
        return draft, answer_faults(draft, config, _instruction(ask)) or ("structured",)
    written = replace(draft, text=write_structured(fields))
    if len(written.text) > config.max_chars:
        return written, ("long",)
    return written, _faults(replace(draft, text=". ".join(fields.values())), ask, config)


def _faults(draft: Draft, ask: Ask, config: CaptionConfig) -> tuple[FaultName, ...]:
    """Return the faults of an answer in plain words; one about the camera counts beside no other."""
    names = answer_faults(draft, config, _instruction(ask))
    return names or (("camera",) if config.checks and contradicts(draft.text, ask.terms) else ())


def answer_faults(draft: Draft, config: CaptionConfig, question: str = "") -> tuple[FaultName, ...]:
    """Return the faults of an answer; with ``config.checks`` off only an empty one is faulty."""
    names = faults(draft.text, draft.stopped, config.min_words, config.max_chars, question, draft.filtered)
    return names if config.checks else tuple(name for name in names if name == "empty")


def retry(ask: Ask, names: Sequence[FaultName], config: CaptionConfig) -> Ask:
    """Return the question for the next attempt: another seed, sampling, and more tokens after a truncation."""
    return replace(
        ask,
        seed=ask.seed + 1,
        temperature=max(ask.temperature, config.retry_temperature),
        max_new_tokens=ask.max_new_tokens * (2 if "truncated" in names else 1),
    )


def _instruction(ask: Ask) -> str:
    """Return the question without the caption that a rewriting model is to write anew, and may repeat."""
    return ask.prompt if ask.pictures is not None else ask.prompt.rpartition("\n\n")[0]


def _fault(draft: Draft, names: Sequence[FaultName], attempts: int) -> Fault:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    reasons = " and ".join(CHECKS[name] for name in names)
    text = draft.text if len(draft.text) <= _SHOWN_CHARS else draft.text[:_SHOWN_CHARS] + " ..."
    return Fault(f"the model gave no good caption in {tries}; in the last one {reasons}: {text!r}")
