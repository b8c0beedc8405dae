"""Shot detection: a small interface and the detectors behind it."""

from curate.shots.colour import ColourDetector, ColourDetectorConfig
from curate.shots.types import Piece, ShotDetector, Transition, pieces

__all__ = [
    "ColourDetector",
    "ColourDetectorConfig",
    "Piece",
    "ShotDetector",
    "Transition",
    "pieces",
]
