"""Provenance of a model's caption, as text for the index and the manifest."""

from collections.abc import Mapping, Sequence

from reelweave.curate.caption.attempts import AcceptedAnswer
from reelweave.curate.caption.checks import CHECKS
from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.prompts import (
    PROMPTS,
    REWRITES,
    STRUCTURED,
    prompt_text,
    rewrite_text,
    sha256,
)
from reelweave.curate.caption.windows import CaptionWindow


def provenance(
    config: CaptionConfig,
    model: Mapping[str, str],
    parts: Sequence[CaptionWindow],
    times_s: Sequence[float],
    answers: Sequence[AcceptedAnswer],
    variant: str = "",
) -> dict[str, str]:
    """Return the provenance of a caption.

    Args:
        config: Settings of the caption, or of the variant.
        model: Identity of the model: model, runtime, config_sha256, weights_sha256.
        parts: Windows of the clip.
        times_s: Display times of all pictures in the prompts, seconds after the clip's first frame.
        answers: Accepted answer for each window.
        variant: Name of the variant; "" for the caption itself.

    Returns:
        The identity, with: prompt (its name, or "free") and prompt_sha256 (of its text). Also windows
        (frames, end excluded) and frame_times_s. Per window: seed, temperature and attempts of the accepted
        answer. For all attempts together: tokens_in and tokens_out. At last checks (those passed, or "off").
    """
    return {
        **model,
        "prompt": config.prompt if config.prompt in (*PROMPTS, STRUCTURED) else "free",
        "prompt_sha256": sha256(prompt_text(config.prompt, variant)),
        "windows": " ".join(f"{part.start}-{part.end}" for part in parts),
        "frame_times_s": " ".join(f"{round(float(time_s), 3):g}" for time_s in times_s),
        **_effort(answers),
        "checks": " ".join(_checks(config)) if config.checks else "off",
    }


def _checks(config: CaptionConfig) -> list[str]:
    """Return the names of the checks that a caption passed."""
    omitted = {"structured"} if config.prompt != STRUCTURED else set[str]()
    return [name for name in CHECKS if name not in omitted | (set() if config.camera_terms else {"camera"})]


def rewritten_provenance(
    config: CaptionConfig, model: Mapping[str, str], answer: AcceptedAnswer
) -> dict[str, str]:
    """Return the provenance of rewriting, with the prefix "rewrite_" before every name."""
    fields = {
        **model,
        "prompt": config.rewrite_prompt if config.rewrite_prompt in REWRITES else "free",
        "prompt_sha256": sha256(rewrite_text(config.rewrite_prompt, "")),
        **_effort([answer]),
    }
    return {f"rewrite_{name}": value for name, value in fields.items()}


def _effort(answers: Sequence[AcceptedAnswer]) -> dict[str, str]:
    return {
        "seed": " ".join(str(answer.ask.seed) for answer in answers),
        "temperature": " ".join(f"{answer.ask.temperature:g}" for answer in answers),
        "attempts": " ".join(str(answer.attempts) for answer in answers),
        "tokens_in": str(sum(answer.tokens_in for answer in answers)),
        "tokens_out": str(sum(answer.tokens_out for answer in answers)),
    }
