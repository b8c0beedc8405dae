"""Cutting of spans into clips: H.264, constant frame rate, fast start, verified."""

from reelweave.curate.cut.clip import CutClip, FailedClip, Observe
from reelweave.curate.cut.clips import cut
from reelweave.curate.cut.config import CutConfig

__all__ = ["CutClip", "CutConfig", "FailedClip", "Observe", "cut"]
