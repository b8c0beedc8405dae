"""Shot detection: a small interface and the detectors behind it."""

from curate.shots.colour import ColourDetector, ColourDetectorConfig
from curate.shots.stride import FixedStride, FixedStrideConfig
from curate.shots.types import Piece, ShotDetector, Transition, pieces

__all__ = [
    "ColourDetector",
    "ColourDetectorConfig",
    "FixedStride",
    "FixedStrideConfig",
    "Piece",
    "ShotDetector",
    "Transition",
    "pieces",
]
