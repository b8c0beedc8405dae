"""How clips are made."""

from typing import ClassVar, Literal

from pydantic import BaseModel, Field


class CutConfig(BaseModel, frozen=True, extra="forbid"):
    """How spans become clips."""

    SPEED_ONLY: ClassVar = frozenset({"ahead_mb"})

    mode: Literal["encode", "copy", "auto"] = Field(
        "encode",
        description="encode every clip; copy the source's packets without loss, and fail spans where that cannot be"
        " exact; auto: copy where it can be, encode elsewhere",
    )
    encoder: Literal["x264", "nvenc", "auto"] = Field(
        "x264",
        description="nvenc needs a GPU that encodes; auto takes it where it works, so that bytes depend on the machine",
    )
    crf: int = Field(
        20, ge=0, le=51, description="constant rate factor (of nvenc: cq); lower is better and larger"
    )
    preset: str = Field(
        "veryfast",
        pattern="^(ultrafast|superfast|veryfast|faster|fast|medium|slow|slower)$",
        description="of x264",
    )
    keyframe_every: int = Field(48, gt=0, description="frames; closer key frames make random access cheaper")
    max_fps: float = Field(60.0, gt=0, description="highest rate chosen for a source of variable frame rate")
    threads: int = Field(1, gt=0, description="encoder threads; part of the output's bytes")
    audio: Literal["keep", "drop"] = Field(
        "keep",
        description="sound: copied where MP4 can hold it and it stays in sync, else encoded as AAC; or none",
    )
    audio_bitrate_kbps: int = Field(128, ge=16, le=512, description="of sound that is encoded")
    max_sound_rate: float = Field(
        4e6,
        gt=0,
        description="samples per second of all channels together; sources that have more keep no sound",
    )
    verify: Literal["ends", "whole"] = Field(
        "ends",
        description="what of a clip is decoded again: its first frame and its last, or all of it;"
        " packets are counted in any case",
    )
    ahead_mb: float = Field(
        512.0,
        ge=0,
        description="megabytes of decoded frames that may wait so that clips are encoded while their source is"
        " scanned; 0, or too few for a source: it is decoded twice, to the same bytes",
    )
