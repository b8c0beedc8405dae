"""Captions of clips, written by people or by a vision-language model."""

from reelweave.curate.caption.captioner import Captioner
from reelweave.curate.caption.config import CaptionConfig, availability
from reelweave.curate.caption.types import NO_CAPTION, Caption

__all__ = ["NO_CAPTION", "Caption", "CaptionConfig", "Captioner", "availability"]
