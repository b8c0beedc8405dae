"""Shot detection: detectors behind one protocol."""

from curate.shots.choice import ShotConfig, check_detector, make_detector
from curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from curate.shots.types import LookaheadDetector, Segment, ShotDetector, Transition, segments

__all__ = [
    "ColourDetector",
    "ColourDetectorConfig",
    "LookaheadDetector",
    "Segment",
    "ShotConfig",
    "ShotDetector",
    "Transition",
    "check_detector",
    "make_detector",
    "segments",
]
