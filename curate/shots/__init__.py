"""Shot detection: detectors behind one protocol."""

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
