"""Which detector finds the shots of a source."""

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from curate.models.device import Device
from curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from curate.shots.fixed import FixedStrideConfig, FixedStrideDetector
from curate.shots.hybrid import HybridConfig, HybridDetector
from curate.shots.rate import frame_step, thinned
from curate.shots.transnet import TransNetConfig, TransNetDetector, network
from curate.shots.types import ShotDetector

_NETWORKS = ("transnetv2", "hybrid")


class ShotConfig(BaseModel, frozen=True, extra="forbid"):
    """How sources are split into shots; the detectors are compared in docs/benchmarks/shots.md."""

    SPEED_ONLY: ClassVar = frozenset({"device"})

    detector: Literal["colour", "hybrid", "transnetv2", "fixed"] = Field(
        "colour",
        description="colour: fast, on a CPU; transnetv2: a network, twenty times as slow; hybrid: colour, and the "
        "network where colour doubts; fixed: cuts at equal distances without looking",
    )
    device: Device = Field(
        "cpu",
        description="where transnetv2 and hybrid run the network; on a GPU each worker takes run.shots_gpus of it",
    )
    colour: ColourDetectorConfig = Field(
        ColourDetectorConfig(), description="thresholds of colour, and of hybrid"
    )
    hybrid: HybridConfig = Field(HybridConfig(), description="when hybrid asks and believes the network")
    transnetv2: TransNetConfig = Field(TransNetConfig(), description="thresholds of transnetv2")
    fixed: FixedStrideConfig = Field(FixedStrideConfig(), description="the stride of fixed")

    @property
    def may_use_gpu(self) -> bool:
        """Whether a network runs on the GPU, if there is one."""
        return self.detector in _NETWORKS and self.device != "cpu"


def check_detector(config: ShotConfig) -> None:
    """Find out before any work whether the detector can be had.

    Raises:
        UsageError: Its package is not installed, or it shall run on a GPU and there is none.
    """
    if config.detector in _NETWORKS:
        network(config.device)


def make_detector(config: ShotConfig, fps: float) -> ShotDetector:
    """A fresh detector for one source.

    Args:
        config: Which detector, and its thresholds.
        fps: Frames per second of the source, on average, above 0.

    Raises:
        UsageError: The detector needs a package that is not installed.
    """
    if config.detector == "fixed":
        return FixedStrideDetector(config.fixed, fps)
    detector: ShotDetector
    if config.detector == "transnetv2":
        detector = TransNetDetector(config.transnetv2, config.device)
    elif config.detector == "hybrid":
        detector = HybridDetector(config.hybrid, config.colour, config.device)
    else:
        detector = ColourDetector(config.colour)
    return thinned(detector, frame_step(fps))
