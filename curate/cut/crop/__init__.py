"""Bars that are cropped from clips: measured on every source's frames, decided for every clip."""

from reelweave.curate.cut.crop.bars import BarMeter, BarNotes
from reelweave.curate.cut.crop.crop import Crop, PictureCropper

__all__ = ["BarMeter", "BarNotes", "Crop", "PictureCropper"]
