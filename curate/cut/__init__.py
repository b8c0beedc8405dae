"""Cutting of spans into clips: H.264, constant frame rate, fast start, verified."""

from curate.cut.clip import CutClip, FailedClip, Observe
from curate.cut.clips import cut
from curate.cut.config import CutConfig

__all__ = ["CutClip", "CutConfig", "FailedClip", "Observe", "cut"]
