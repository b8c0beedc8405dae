"""Choice of the shot detector."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from reelweave.curate.models.device import Device
from reelweave.curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.fixed import FixedStrideConfig, FixedStrideDetector
from reelweave.curate.shots.hybrid import HybridConfig, HybridDetector
from reelweave.curate.shots.rate import frame_step, thin_frames
from reelweave.curate.shots.transnet import TransNetConfig, TransNetDetector, network
from reelweave.curate.shots.types import ShotDetector
from reelweave.loader.settings import Settings

_NETWORKS = ("transnetv2", "hybrid")


class ShotConfig(Settings):
    """Splitting of sources into shots; docs/benchmarks/shots.md compares the detectors."""

    SPEED_ONLY: ClassVar = frozenset({"device"})
    ADDED: ClassVar = frozenset({"min_confidence"})
    READ_WITH: ClassVar = {
        "device": ("detector", _NETWORKS),
        "colour": ("detector", ("colour", "hybrid")),
        "hybrid": ("detector", ("hybrid",)),
        "transnetv2": ("detector", ("transnetv2",)),
        "fixed": ("detector", ("fixed",)),
    }

    detector: Literal["colour", "hybrid", "transnetv2", "fixed"] = Field(
        "colour",
        description="shot detector. colour: fast, on the CPU. transnetv2: a neural network, twenty times as slow."
        " hybrid: colour, with the network for doubtful transitions. fixed: cuts at a fixed stride",
    )
    min_confidence: float = Field(
        0.0,
        ge=0,
        le=0.95,
        description="minimum probability that a clip holds no transition that was seen and doubted: shots also end at"
        " changes that are more probable than 1 less this, for colour and hybrid. 0 adds none to the thresholds",
    )
    device: Device = Field(
        "cpu",
        description="device of the network of transnetv2 and hybrid; on a GPU each worker reserves run.shots_gpus of"
        " one",
    )
    colour: ColourDetectorConfig = Field(
        ColourDetectorConfig(), description="thresholds of colour, and of hybrid"
    )
    hybrid: HybridConfig = Field(HybridConfig(), description="thresholds of hybrid")
    transnetv2: TransNetConfig = Field(TransNetConfig(), description="thresholds of transnetv2")
    fixed: FixedStrideConfig = Field(FixedStrideConfig(), description="stride of fixed")

    @model_validator(mode="after")
    def _probabilities(self) -> Self:
        if self.min_confidence and self.detector not in ("colour", "hybrid"):
            raise ValueError(
                f"min_confidence needs probabilities, which shots.detector={self.detector} does not give; set"
                " shots.detector=colour or hybrid, or leave it out"
            )
        return self

    @property
    def may_use_gpu(self) -> bool:
        """True when a network runs on the GPU, if there is one."""
        return self.detector in _NETWORKS and self.device != "cpu"


def check_detector(config: ShotConfig) -> None:
    """Check before any work that the packages and the device of the detector are there.

    Raises:
        UsageError: The package is not installed, or a GPU is configured and there is none.
    """
    if config.detector in _NETWORKS:
        network(config.device)


def make_detector(config: ShotConfig, fps: float) -> ShotDetector:
    """Return a new detector for one source.

    Args:
        config: Choice and thresholds of the detector.
        fps: Mean frames per second of the source, above 0.

    Raises:
        UsageError: The package of the detector is not installed.
    """
    if config.detector == "fixed":
        return FixedStrideDetector(config.fixed, fps)
    detector: ShotDetector
    if config.detector == "transnetv2":
        detector = TransNetDetector(config.transnetv2, config.device)
    elif config.detector == "hybrid":
        detector = HybridDetector(config.hybrid, config.colour, config.device, config.min_confidence)
    else:
        detector = ColourDetector(config.colour, min_confidence=config.min_confidence)
    return thin_frames(detector, frame_step(fps))
