"""Raw footage for a demo without videos: rendered scenes, really cut and really encoded."""

from pipelines.footage.make import MadeVideo, make_footage
from pipelines.footage.reels import REELS

__all__ = ["REELS", "MadeVideo", "make_footage"]
