"""Filter decisions, made from scores and thresholds without access to clips."""

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from curate.filters.config import FilterConfig
from curate.filters.motion import VECTORS_MISSING


@dataclass(frozen=True)
class Rejection:
    """Reason why a clip is not kept.

    Attributes:
        stage: "filter." and the name of the score.
        reason: Sentence that names the configuration key.
        score: Score of the clip; None when missing.
        threshold: Threshold that the score was compared with.
        state: "filtered", or "failed" where the score is missing.
    """

    stage: str
    reason: str
    score: float | None
    threshold: float
    state: Literal["filtered", "failed"] = "filtered"


def decide(
    scores: Mapping[str, float], config: FilterConfig, pending: Collection[str] = ()
) -> Rejection | None:
    """Return the first threshold that rejects the scores, in the order of `FilterConfig`, or None for a kept clip.

    A threshold on a score that is missing or NaN makes the clip fail. A score equal to its threshold passes.

    Args:
        scores: Scores of a clip, by name.
        config: Thresholds.
        pending: Names of scores that a later stage writes; their thresholds are skipped until then.
    """
    for key, bound, name, threshold in _thresholds(config):
        score = scores.get(name)
        if score is None or math.isnan(score):
            if name in pending:
                continue
            return Rejection(f"filter.{name}", _missing(name, key, scores), None, threshold, "failed")
        if score < threshold if bound == "min" else score > threshold:
            side = "below" if bound == "min" else "above"
            reason = f"{name} {score:.4g} is {side} filters.{key} = {threshold:g}"
            return Rejection(f"filter.{name}", reason, score, threshold)
    return None


@functools.lru_cache
def _thresholds(config: FilterConfig) -> tuple[tuple[str, str, str, float], ...]:
    """Return key, "min" or "max", name of the score and value of each threshold that is set, in order."""
    values = ((key, *key.split("_", 1), getattr(config, key)) for key in FilterConfig.model_fields)
    return tuple(one for one in values if one[3] is not None)


def _missing(name: str, key: str, scores: Mapping[str, float]) -> str:
    cause = "was not measured"
    if scores.get("motion_source") == VECTORS_MISSING and name.startswith("motion"):
        cause = "could not be measured, because a codec that has motion vectors gave none"
    return f"{name} {cause}, and filters.{key} asks for it"
