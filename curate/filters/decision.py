"""From scores and thresholds to one decision, without looking at a clip again."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from curate.filters.config import FilterConfig
from curate.filters.motion import VECTORS_MISSING


@dataclass(frozen=True)
class Rejection:
    """Why a clip is not kept.

    Attributes:
        stage: "filter." and the name of the score.
        reason: one sentence that names the configuration's key.
        score: the number that was looked at; None when it is missing.
        threshold: what it was compared with.
        state: "filtered", or "failed" where the score is missing and nobody can tell.
    """

    stage: str
    reason: str
    score: float | None
    threshold: float
    state: Literal["filtered", "failed"] = "filtered"


def decide(
    scores: Mapping[str, float], config: FilterConfig, pending: Collection[str] = ()
) -> Rejection | None:
    """The first threshold that the scores miss, in the order of `FilterConfig`, or None when the clip is kept.

    A threshold on a score that is missing, or not a number, is no pass and no miss: the clip failed. A score on
    its threshold passes.

    Args:
        scores: of a clip, by name.
        config: thresholds.
        pending: names of scores that a later stage writes; their thresholds are passed over until then.
    """
    for key in FilterConfig.model_fields:
        threshold = getattr(config, key)
        bound, _, name = key.partition("_")
        if threshold is None:
            continue
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


def _missing(name: str, key: str, scores: Mapping[str, float]) -> str:
    cause = "was not measured"
    if scores.get("motion_source") == VECTORS_MISSING and name.startswith("motion"):
        cause = "could not be measured, because a codec that has motion vectors gave none"
    return f"{name} {cause}, and filters.{key} asks for it"
