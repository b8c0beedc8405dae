"""Movement of the camera in words, from measured scores; and captions that contradict it."""

import re
from collections.abc import Mapping, Sequence

_MOVES_FROM = {"pan": 0.03, "tilt": 0.03, "zoom": 0.025, "roll": 1.5, "shake": 0.03}
"""Score of `reelweave.curate.models.camera` from which each movement is said (docs/filters.md)."""
STATIC = "static"
CAMERA_SCORES = tuple(f"camera_{term}" for term in _MOVES_FROM)
"""Scores that the terms follow from."""

_WORDS = {
    "pan": "it pans (moves or turns sideways)",
    "tilt": "it tilts (moves or turns up or down)",
    "zoom": "it zooms, or moves forward or back",
    "roll": "it rolls (turns around the line of sight)",
    "shake": "it shakes, as if held by hand",
    STATIC: "it stands still",
}

_STANDS = (
    r"(?:static|stationary|motionless|immobile|unmoving|fixed|locked[- ](?:off|down)|still)\b[^.,;]{0,20}"
    r"\b(?:camera|shot|frame|framing|viewpoint|perspective)"
    r"|camera (?:angle |position |view |itself )?(?:is |remains |stays |stands |holds |being |kept )"
    r"(?:\w+ly )?(?:static|stationary|motionless|still|fixed|steady|locked|in place)"
    r"|camera (?:does not|doesn't|never) (?:move|pan|tilt|zoom)"
    r"|no camera (?:movement|motion)|without (?:any )?camera (?:movement|motion)"
)
_SAYS_STATIC = re.compile(_STANDS)
_SAYS_MOVING = re.compile(
    r"camera (?:\w+ly |then |also |begins to |starts to ){0,3}"
    r"(?:pans|pan|panning|tilts|tilting|zooms|zooming|tracks|tracking|dollies|trucks|orbits|circles|swings|rotates"
    r"|pushes in|pulls back|moves|moving|follows)\b"
    r"|(?:panning|tracking|dolly|zooming|orbiting) shot\b"
    r"|(?<!no )(?<!without )\bcamera (?:pan|tilt|zoom|movement is)\b"
)
_MOVING = frozenset({"pan", "tilt", "zoom", "roll"})


def camera_terms(scores: Mapping[str, float]) -> tuple[str, ...]:
    """Return the terms of a clip's movement, or `STATIC`; () where it was not measured.

    Args:
        scores: Scores of the clip, by name.
    """
    if not all(name in scores for name in CAMERA_SCORES):
        return ()
    moving = tuple(term for term, bound in _MOVES_FROM.items() if scores[f"camera_{term}"] >= bound)
    return moving or (STATIC,)


def describe_terms(terms: Sequence[str]) -> str:
    """Return terms in words, for a prompt."""
    return " and ".join(_WORDS[term] for term in terms)


def contradicts(text: str, terms: Sequence[str]) -> bool:
    """Return True if an English caption says that a moving camera stands still, or that one at rest moves.

    Which way it moves is not compared, nor is shake alone, since a shaken camera may stand.

    Args:
        text: Caption.
        terms: Measured terms; () contradicts nothing.
    """
    plain = text.lower().replace("\u2019", "'")
    says_static, says_moving = (pattern.search(plain) is not None for pattern in (_SAYS_STATIC, _SAYS_MOVING))
    if STATIC in terms:
        return says_moving and not says_static
    return says_static and not says_moving and not _MOVING.isdisjoint(terms)
