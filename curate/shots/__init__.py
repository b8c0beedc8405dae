"""Shot detection: detectors behind one protocol."""

from reelweave.curate.shots.choice import ShotConfig, check_detector, make_detector
from reelweave.curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.types import LookaheadDetector, Segment, ShotDetector, Transition, segments

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
