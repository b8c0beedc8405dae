"""What is measured of a clip, and apart from it which values are good enough."""

from typing import Literal

from pydantic import BaseModel, Field


class ScoreConfig(BaseModel, frozen=True, extra="forbid"):
    """What is measured. A change measures all clips again, and so decodes all sources again."""

    fps: float = Field(4.0, gt=0, le=30, description="pictures per second that all scores are taken from")
    long_side_px: int = Field(
        256, ge=64, le=1024, description="long side of those pictures, pixels; nothing is enlarged"
    )
    ocr: Literal["none", "rapidocr", "easyocr"] = Field(
        "none", description="package that also looks for text in one picture per second; it must be installed"
    )


class FilterConfig(BaseModel, frozen=True, extra="forbid"):
    """Thresholds. Each is named after a score; a clip that misses one is filtered; None decides nothing.

    They are looked at in this order, and the first that is missed is the reason.
    """

    min_duration_s: float | None = Field(1.0, description="clips shorter than this are filtered, seconds")
    max_duration_s: float | None = Field(None, description="longer clips are filtered, seconds")
    min_short_side_px: float | None = Field(128, description="smaller pictures are filtered, pixels")
    max_short_side_px: float | None = Field(None, description="larger pictures are filtered, pixels")
    min_aspect: float | None = Field(None, description="width / height below this is filtered")
    max_aspect: float | None = Field(None, description="width / height above this is filtered")
    min_fps: float | None = Field(None, description="fewer frames per second are filtered")
    max_fps: float | None = Field(None, description="more frames per second are filtered")
    max_black_share: float | None = Field(0.95, description="share of the pictures that are black, 0 to 1")
    max_white_share: float | None = Field(0.95, description="share of the pictures that are white, 0 to 1")
    max_frozen_share: float | None = Field(
        0.95, description="share of the time in which the picture stands still, 0 to 1"
    )
    max_slideshow: float | None = Field(
        None, description="share of the time in stills, where a clip holds several, 0 to 1"
    )
    max_duplicate_share: float | None = Field(
        None, description="share of the frames that repeat the one before, 0 to 1"
    )
    min_motion: float | None = Field(None, description="mean motion, picture diagonals per second")
    max_motion: float | None = Field(None, description="mean motion, picture diagonals per second")
    min_motion_local: float | None = Field(
        None, description="motion of things less that of the camera, picture diagonals per second"
    )
    max_motion_local: float | None = Field(
        None, description="motion of things less that of the camera, picture diagonals per second"
    )
    min_sharpness: float | None = Field(
        None, description="fine detail relative to coarse, about 0 (blurred) to 0.8"
    )
    min_luminance: float | None = Field(None, description="mean luminance, 0 to 255")
    max_luminance: float | None = Field(None, description="mean luminance, 0 to 255")
    min_contrast: float | None = Field(
        None, description="95th less 5th percentile of the luminance, 0 to 255"
    )
    max_crushed_share: float | None = Field(None, description="share of pixels that are fully black, 0 to 1")
    max_clipped_share: float | None = Field(None, description="share of pixels that are fully white, 0 to 1")
    min_colourfulness: float | None = Field(None, description="black and white footage is near 0")
    max_flicker: float | None = Field(
        None, description="amplitude of the brightness from frame to frame, 0 to 255"
    )
    max_bars_share: float | None = Field(None, description="share of the picture that is bars, 0 to 1")
    max_text_peak: float | None = Field(
        None, description="how much the most text-like place looks like text, 0 to about 0.6"
    )
    max_text_share: float | None = Field(
        None, description="share of the picture covered by burnt-in text, 0 to 1"
    )
    max_overlay_share: float | None = Field(
        None, description="share of a moving picture covered by marks that stand still, 0 to 1"
    )
    max_ocr_share: float | None = Field(
        None, description="share of the picture covered by text that OCR found; needs scores.ocr"
    )
    max_silent_share: float | None = Field(None, description="share of the time that is silent, 0 to 1")
    min_loudness_dbfs: float | None = Field(None, description="loudness, decibels below full scale")
    min_aesthetic: float | None = Field(
        None, description="aesthetic score of a CLIP head, about 1 to 10; needs aesthetic.weights"
    )
