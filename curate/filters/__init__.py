"""Scores of clips from one shared sample, and thresholds that decide on them separately."""

from reelweave.curate.filters.bars import Bars, bars_scores, find_bars, without_bars
from reelweave.curate.filters.config import FilterConfig, ScoreConfig
from reelweave.curate.filters.decision import Rejection, decide
from reelweave.curate.filters.light import light_scores
from reelweave.curate.filters.measure import scores
from reelweave.curate.filters.motion import motion_scores
from reelweave.curate.filters.ocr import TextReader, check_ocr, ocr_scores, text_reader
from reelweave.curate.filters.overlay import overlay_scores
from reelweave.curate.filters.sample import ClipSample, shape_scores
from reelweave.curate.filters.sharpness import sharpness_scores
from reelweave.curate.filters.sound import loudness_dbfs, sound_scores
from reelweave.curate.filters.still import still_scores
from reelweave.curate.filters.vectors import MotionMeter, SpanMotion, frame_motion

__all__ = [
    "Bars",
    "ClipSample",
    "FilterConfig",
    "MotionMeter",
    "Rejection",
    "ScoreConfig",
    "SpanMotion",
    "TextReader",
    "bars_scores",
    "check_ocr",
    "decide",
    "find_bars",
    "frame_motion",
    "light_scores",
    "loudness_dbfs",
    "motion_scores",
    "ocr_scores",
    "overlay_scores",
    "scores",
    "shape_scores",
    "sharpness_scores",
    "sound_scores",
    "still_scores",
    "text_reader",
    "without_bars",
]
