"""Probability that a candidate is a transition, from its score.

A logistic function of the score's logarithm of odds, by kind: the networks are too doubtful of hard cuts, and far too
sure of runs. The numbers were fitted on 120 films of 74 sources whose transitions were read by eye, where films of one
source share a weight that grows with the root of their number: docs/benchmarks/shots.md says how well they hold.
"""

import math
from collections.abc import Mapping

from reelweave.curate.shots.types import Candidate, CandidateKind

_RUN = (-2.27, 0.95)
_LOGISTIC: Mapping[CandidateKind, tuple[float, float]] = {
    "cut": (1.55, 1.36),
    "abrupt": (4.76, 0.0),
    "dissolve": _RUN,
    "gradual": _RUN,
    "fade": (1.99, 0.0),
}
"""Offset and slope. A slope of 0 gives all candidates of a kind one probability: nearly all of them are right."""

_EDGE = 1e-4  # scores nearer to 0 or 1 than this count as that near


def probability_of(candidate: Candidate) -> float:
    """Return the probability that a candidate is a transition."""
    offset, slope = _LOGISTIC[candidate.kind]
    score = min(max(candidate.score, _EDGE), 1 - _EDGE)
    return _share(offset + slope * _log_odds(score))


def score_at(kind: CandidateKind, probability: float) -> float:
    """Return the score above which a candidate of a kind is more probable than this, between 0 and 1."""
    offset, slope = _LOGISTIC[kind]
    return _share((_log_odds(probability) - offset) / slope)


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))
