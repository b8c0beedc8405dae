"""Captions of clips: what people wrote, or what a vision-language model says."""

from curate.caption.captioner import Captioner
from curate.caption.config import CaptionConfig, availability
from curate.caption.types import NO_CAPTION, Caption

__all__ = ["NO_CAPTION", "Caption", "CaptionConfig", "Captioner", "availability"]
