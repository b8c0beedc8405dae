"""Filter decisions, made from scores and thresholds without access to clips."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.config import FilterConfig
from reelweave.curate.filters.motion import VECTORS_MISSING


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


def decide(scores: Mapping[str, float], config: FilterConfig) -> Rejection | None:
    """Return the first threshold that rejects the scores, in the order of `FilterConfig`, or None for a kept clip.

    A threshold on a score that is missing or NaN makes the clip fail. A score equal to its threshold passes.

    Args:
        scores: Scores of a clip, by name.
        config: Thresholds.
    """
    return first_rejection(scores, thresholds(config))


def first_rejection(scores: Mapping[str, float], thresholds: "Iterable[Threshold]") -> Rejection | None:
    """Return the first of some thresholds that rejects the scores; see `decide`."""
    for threshold in thresholds:
        score = scores.get(threshold.name, math.nan)
        if math.isnan(score):
            return threshold.missing(scores.get("motion_source"))
        if threshold.rejects(score):
            return threshold.beyond(score)
    return None


class Threshold(NamedTuple):
    """One threshold that is set.

    Attributes:
        key: Field of `FilterConfig`.
        bound: "min" or "max".
        name: Name of the score.
        value: Threshold.
    """

    key: str
    bound: str
    name: str
    value: float

    @overload
    def rejects(self, score: float) -> bool: ...
    @overload
    def rejects(self, score: NDArray[np.float64]) -> NDArray[np.bool_]: ...
    def rejects(self, score: Any) -> Any:
        """Return whether a score is beyond the threshold, or which of many are; NaN is not."""
        return score < self.value if self.bound == "min" else score > self.value

    def beyond(self, score: float) -> Rejection:
        """Return the rejection of a score."""
        side = "below" if self.bound == "min" else "above"
        reason = f"{self.name} {score:.4g} is {side} filters.{self.key} = {self.value:g}"
        return Rejection(f"filter.{self.name}", reason, score, self.value)

    def missing(self, motion_source: float | None) -> Rejection:
        """Return the rejection of a clip without the score."""
        cause = "was not measured"
        if motion_source == VECTORS_MISSING and self.name.startswith("motion"):
            cause = "could not be measured, because a codec that has motion vectors gave none"
        reason = f"{self.name} {cause}, and filters.{self.key} asks for it"
        return Rejection(f"filter.{self.name}", reason, None, self.value, "failed")


@functools.lru_cache
def thresholds(config: FilterConfig) -> tuple[Threshold, ...]:
    """Return the thresholds that are set, in order."""
    keys = (*FilterConfig.model_fields, *sorted(config.model_extra or {}))
    values = (Threshold(key, key[:3], score_of(key), getattr(config, key)) for key in keys)
    return tuple(threshold for threshold in values if threshold.value is not None)


def by_stage(
    config: FilterConfig, waiting: Mapping[str, Sequence[str]]
) -> tuple[list[Threshold], dict[str, list[Threshold]]]:
    """Return the thresholds on scores of the pass over sources, and those on the scores of each later stage.

    Args:
        config: Thresholds.
        waiting: Names of the scores that each later stage writes.
    """
    stages = {name: stage for stage, names in waiting.items() for name in names}
    at_once: list[Threshold] = []
    later: dict[str, list[Threshold]] = {}
    for threshold in thresholds(config):
        stage = stages.get(threshold.name)
        (at_once if stage is None else later.setdefault(stage, [])).append(threshold)
    return at_once, later


def score_of(key: str) -> str:
    """Return the name of the score that a key of `FilterConfig` bounds: "motion" of "min_motion"."""
    return key.partition("_")[2]
