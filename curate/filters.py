"""Scores of a span and the thresholds that decide on them, kept apart."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from curate.picture import Geometry
from curate.spans import Span


class FilterConfig(BaseModel, frozen=True, extra="forbid"):
    """Thresholds; a span is kept when it meets all of them."""

    min_duration_s: float = Field(1.0, ge=0, description="shorter spans are filtered")
    min_short_side_px: int = Field(128, ge=0, description="spans of smaller pictures are filtered")


@dataclass(frozen=True)
class Rejection:
    """Why a span is filtered: the stage, the score it had and the threshold it missed."""

    stage: str
    reason: str
    score: float
    threshold: float


def span_scores(span: Span, size: Geometry) -> dict[str, float]:
    """Scores known before anything is cut, by name."""
    return {"duration_s": span.end_s - span.start_s, "short_side_px": float(min(size.width, size.height))}


def decide(scores: dict[str, float], config: FilterConfig) -> Rejection | None:
    """The first threshold the scores miss, or None when the span is kept."""
    duration_s = scores["duration_s"]
    if duration_s < config.min_duration_s:
        reason = f"{duration_s:.2f} s is shorter than filters.min_duration_s"
        return Rejection("filter.duration", reason, duration_s, config.min_duration_s)
    short_side = scores["short_side_px"]
    if short_side < config.min_short_side_px:
        reason = f"a short side of {short_side:.0f} px is below filters.min_short_side_px"
        return Rejection("filter.resolution", reason, short_side, config.min_short_side_px)
    return None
