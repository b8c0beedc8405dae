"""Published curves of seconds over GPUs that the advisor is held against."""

from collections.abc import Mapping
from dataclasses import dataclass

from reelweave.pipelines.plans.advisor.published import MODELS
from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine, VideoModel


def published(name: str, frames: int = 81, height: int = 720, width: int = 1280, steps: int = 50):
    """A published model and a video."""
    return MODELS[name](frames, height, width, steps)


def wan_14b(**video: int) -> VideoModel:
    return published("wan2.1-t2v-14b", **video)


@dataclass(frozen=True)
class Curve:
    """Published seconds of a video by number of GPUs.

    Attributes:
        source: publication.
        model: model and video.
        one: seconds of one GPU.
        machine: GPUs and links, for one GPU.
        seconds: seconds by number of GPUs.
    """

    source: str
    model: VideoModel
    one: OneGpu
    machine: SamplingMachine
    seconds: Mapping[int, float]


NVLINK_5, NVLINK_4 = 900e9, 450e9

_B200_OTHER = {"decode_s": 2.4, "other_s": 1.8}
"""Stages beside denoising on B200: 4.2 s on one GPU and 3.0 s on two, so that 2.4 s are shared by the ranks."""

CURVES = {
    "wan2.2 on gb200": Curve(
        "TensorRT-LLM VisualGen, tech blog 25",
        published("wan2.2-t2v-a14b", steps=40),
        OneGpu(denoise_s=348 - 4.2, **_B200_OTHER),
        SamplingMachine(gpus=1, gpus_per_node=72, node_bytes_per_s=NVLINK_5),
        {8: 48.1, 16: 25.6, 64: 8.5},
    ),
    "wan2.2 on b200, guidance over two": Curve(
        "TensorRT-LLM VisualGen, tech blog 25",
        published("wan2.2-t2v-a14b", steps=40),
        OneGpu(denoise_s=342.0, **_B200_OTHER),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_5),
        {2: 183.0},
    ),
    "hunyuanvideo on h100": Curve(
        "xDiT docs/performance/hunyuanvideo.md",
        published("hunyuanvideo", frames=129),
        OneGpu(denoise_s=1904.0),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_4),
        {2: 925.0, 4: 514.0, 8: 338.0},
    ),
    "hunyuanvideo on h20": Curve(
        "xDiT docs/performance/hunyuanvideo.md",
        published("hunyuanvideo", frames=129),
        OneGpu(denoise_s=6639.0),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_4),
        {8: 941.0},
    ),
}
