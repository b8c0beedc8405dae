"""Shot detection: a small interface and the detectors behind it."""

from curate.shots.choice import ShotConfig, check_detector, make_detector
from curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from curate.shots.types import ForetellingDetector, Piece, ShotDetector, Transition, pieces

__all__ = [
    "ColourDetector",
    "ColourDetectorConfig",
    "ForetellingDetector",
    "Piece",
    "ShotConfig",
    "ShotDetector",
    "Transition",
    "check_detector",
    "make_detector",
    "pieces",
]
