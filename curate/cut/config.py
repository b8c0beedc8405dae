"""Settings of the stage that cuts clips."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from reelweave.curate.frames.clocks.rates import STANDARD_RATES
from reelweave.loader.settings import Except, Settings

_ROUNDED = 0.001  # frames per second by which a written rate may be rounded


class CutConfig(Settings):
    """Encoding of spans as clips."""

    SPEED_ONLY: ClassVar = frozenset({"ahead_mb"})
    ADDED: ClassVar = frozenset({"max_copied_mbps", "crop_bars", "fps"})
    READ_WITH: ClassVar = {
        "trim_s": ("mode", ("copy", "auto")),
        "max_copied_mbps": ("mode", ("smart",)),
        "audio_bitrate_kbps": ("audio", ("keep",)),
        "max_sound_rate": ("audio", ("keep",)),
    } | dict.fromkeys(
        ("encoder", "crf", "preset", "keyframe_every", "threads", "ahead_mb"), ("mode", Except("copy"))
    )

    mode: Literal["encode", "copy", "auto", "smart"] = Field(
        "encode",
        description="treatment of clips. encode: encode every clip. copy: copy the source's packets without loss,"
        " and fail spans where a copy is not exact. auto: copy where exact, else encode. smart: of 8-bit H.264,"
        " and of HEVC with cut.max_bits=10, copy whole groups of pictures, and encode only the frames before and"
        " behind them; encode other sources",
    )
    trim_s: float = Field(
        0.0,
        ge=0,
        description="time that a clip may lose at each end so that its packets can be copied, seconds; for cut.mode"
        " copy and auto. Lost time counts as filtered",
    )
    max_copied_mbps: float = Field(
        100.0,
        gt=0,
        description="maximum bit rate of a source whose pictures are copied by cut.mode smart, megabits per second, by"
        " its size and stated duration. Clips have that rate; sources above it are encoded",
    )
    max_bits: Literal[8, 10] = Field(
        8,
        description="maximum bits per sample. 10: sources of more than 8 bits, and HDR, become 10-bit HEVC of their"
        " own colour, with HDR metadata. Models, filters and training get 8-bit SDR in both cases",
    )
    crop_bars: bool = Field(
        False,
        description="true: crop letterbox, pillarbox and other uniform borders that last for a whole clip. Its rows"
        " tell the lines in crop_top_px and so on. Cropped clips are encoded",
    )
    encoder: Literal["x264", "nvenc", "auto"] = Field(
        "x264",
        description="video encoder of 8-bit clips; nvenc needs a GPU with an encoder; auto uses nvenc where that works,"
        " and the bytes depend on the machine",
    )
    crf: int = Field(
        20,
        ge=0,
        le=51,
        description="constant rate factor (cq for nvenc); a lower value gives better quality and larger files",
    )
    preset: str = Field(
        "veryfast",
        pattern="^(ultrafast|superfast|veryfast|faster|fast|medium|slow|slower)$",
        description="speed preset of x264 and x265; slower presets give smaller files",
    )
    keyframe_every: int = Field(
        48, gt=0, description="key frame interval, frames; a shorter one makes random access cheaper"
    )
    max_fps: float = Field(
        60.0, gt=0, description="maximum clip rate for sources of variable frame rate, frames per second"
    )
    fps: float | None = Field(
        None,
        ge=1,
        le=240,
        description="frame rate of clips whose footage has a higher one, as models want it, frames per second. Each"
        " slot shows the frame of its time; slower footage, and a rate within 0.2 %, stays. Lowered clips are encoded",
    )
    threads: int = Field(1, gt=0, description="encoder threads; their number changes the bytes of clips")
    audio: Literal["keep", "drop"] = Field(
        "keep",
        description="keep: copy sound that MP4 can hold in sync, encode other sound as AAC; drop: no sound",
    )
    audio_bitrate_kbps: int = Field(
        128, ge=16, le=512, description="bit rate of encoded sound, kilobits per second"
    )
    max_sound_rate: float = Field(
        4e6,
        gt=0,
        description="maximum sound samples per second, all channels together; sources above it keep no sound",
    )
    verify: Literal["ends", "whole"] = Field(
        "ends",
        description="frames decoded to verify each clip, ends: the first and the last; whole: all; the packets are"
        " always counted",
    )
    ahead_mb: float = Field(
        512.0,
        ge=0,
        description="memory for decoded frames that wait for the encoder while their source is scanned, megabytes."
        " With 0, or too little for a source, the source is decoded twice, to the same bytes",
    )

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "copy" and self.crop_bars:
            raise ValueError("mode=copy cannot crop bars; set crop_bars=false, or mode=auto or smart")
        if self.mode == "copy" and self.fps is not None:
            raise ValueError(
                "mode=copy cannot lower a frame rate; leave fps unset, or set mode=auto or smart"
            )
        if self.mode == "smart" and self.encoder != "x264":
            raise ValueError(
                "mode=smart encodes with x264 alone, whose parameter sets it can name; set encoder=x264"
            )
        return self

    @property
    def clip_fps(self) -> Fraction | None:
        """``fps`` as a fraction, where 23.976 stands for 24000/1001; None without one."""
        if self.fps is None:
            return None
        near = min(STANDARD_RATES, key=lambda rate: abs(rate - Fraction(self.fps or 0)))
        exact = Fraction(self.fps).limit_denominator(1001)
        return near if abs(near - exact) < _ROUNDED else exact
