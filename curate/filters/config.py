"""Settings of the scores and, apart from them, the filter thresholds."""

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from reelweave.loader.settings import Settings


class ScoreConfig(Settings):
    """Measurement of clips. A changed key measures all clips again and decodes all sources again."""

    ADDED: ClassVar = frozenset({"graphics"})

    fps: float = Field(
        4.0, gt=0, le=30, description="sampling rate of the pictures that are scored, pictures per second"
    )
    long_side_px: int = Field(
        256,
        ge=64,
        le=1024,
        description="long side of the scored pictures, pixels; smaller pictures are not enlarged",
    )
    ocr: Literal["none", "rapidocr", "easyocr"] = Field(
        "none", description="OCR package that scores one picture per second; it must be installed"
    )
    graphics: bool = Field(
        False,
        description="look for static graphics, such as logos, in four pictures per second of up to 960 pixels",
    )


class FilterConfig(Settings):
    """Filter thresholds, named after the scores; a clip beyond one is filtered, an unset one accepts every clip.

    The first threshold that rejects a clip, in this order, is the reason in the accounting. Further keys are
    `min_NAME` and `max_NAME` of the scores that `stages` give.
    """

    # A curation's configuration refuses those of no stage: `reelweave.curate.models.custom.configured`.
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None]

    min_duration_s: float | None = Field(1.0, description="minimum clip length, seconds")
    max_duration_s: float | None = Field(None, description="maximum clip length, seconds")
    min_short_side_px: float | None = Field(128, description="minimum short side, pixels")
    max_short_side_px: float | None = Field(None, description="maximum short side, pixels")
    min_aspect: float | None = Field(None, description="minimum aspect ratio, width / height")
    max_aspect: float | None = Field(None, description="maximum aspect ratio, width / height")
    min_fps: float | None = Field(
        None,
        description="minimum frame rate of the footage, which cut.fps may lower in clips, frames per second",
    )
    max_fps: float | None = Field(None, description="maximum frame rate of the footage, frames per second")
    max_black_share: float | None = Field(0.95, description="maximum share of black pictures, 0 to 1")
    max_white_share: float | None = Field(0.95, description="maximum share of white pictures, 0 to 1")
    max_frozen_share: float | None = Field(
        0.95, description="maximum share of time with a frozen picture, 0 to 1"
    )
    max_slideshow: float | None = Field(
        None,
        description="maximum share of time in still pictures, for clips with at least two of them, 0 to 1",
    )
    max_duplicate_share: float | None = Field(
        None, description="maximum share of frames that repeat the frame before, 0 to 1"
    )
    min_motion: float | None = Field(None, description="minimum mean motion, picture diagonals per second")
    max_motion: float | None = Field(None, description="maximum mean motion, picture diagonals per second")
    min_motion_local: float | None = Field(
        None, description="minimum motion relative to the camera, picture diagonals per second"
    )
    max_motion_local: float | None = Field(
        None, description="maximum motion relative to the camera, picture diagonals per second"
    )
    min_sharpness: float | None = Field(
        None, description="minimum ratio of fine detail to coarse detail, about 0 (blurred) to 0.8"
    )
    min_luminance: float | None = Field(None, description="minimum mean luminance, 0 to 255")
    max_luminance: float | None = Field(None, description="maximum mean luminance, 0 to 255")
    min_contrast: float | None = Field(
        None, description="minimum contrast: 95th minus 5th percentile of the luminance, 0 to 255"
    )
    max_crushed_share: float | None = Field(None, description="maximum share of fully black pixels, 0 to 1")
    max_clipped_share: float | None = Field(None, description="maximum share of fully white pixels, 0 to 1")
    min_colourfulness: float | None = Field(
        None,
        description="minimum colourfulness (Hasler and Suesstrunk 2003); black and white footage is near 0",
    )
    max_flicker: float | None = Field(
        None, description="maximum amplitude of the brightness from frame to frame, 0 to 255"
    )
    max_bars_share: float | None = Field(
        None, description="maximum share of the picture covered by letterbox or pillarbox bars, 0 to 1"
    )
    max_text_peak: float | None = Field(
        None, description="maximum text response of the most text-like place, 0 to about 0.6"
    )
    max_text_share: float | None = Field(
        None, description="maximum share of the picture covered by burnt-in text, 0 to 1"
    )
    max_overlay_share: float | None = Field(
        None, description="maximum share of a moving picture covered by static marks such as logos, 0 to 1"
    )
    max_ocr_share: float | None = Field(
        None,
        description="maximum share of the picture covered by text that OCR finds, 0 to 1; needs scores.ocr",
    )
    max_ocr_chars: float | None = Field(
        None, description="maximum mean number of characters that OCR reads in a picture; needs scores.ocr"
    )
    max_static_graphic: float | None = Field(
        None,
        description="maximum share of the picture's pixels that are edges of a static graphic, such as a logo, 0 to 1;"
        " needs scores.graphics",
    )
    max_silent_share: float | None = Field(None, description="maximum share of silent time, 0 to 1")
    min_loudness_dbfs: float | None = Field(
        None, description="minimum loudness, dBFS (decibels relative to full scale, at most 0)"
    )
    min_aesthetic: float | None = Field(
        None, description="minimum aesthetic score, about 1 to 10; needs aesthetic.weights"
    )
    min_caption_match: float | None = Field(
        None,
        description="minimum cosine of a clip and its caption, -1 to 1; needs embed.backend=open_clip",
    )
