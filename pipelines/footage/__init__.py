"""Raw footage for a demo without videos: patterns that FFmpeg draws, really cut and really encoded."""

from reelweave.pipelines.footage.make import make_footage
from reelweave.pipelines.footage.reels import REELS

__all__ = ["REELS", "make_footage"]
