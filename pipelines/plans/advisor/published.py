"""Published models, and published curves of seconds over GPUs that the simulator is held against."""

from collections.abc import Mapping
from dataclasses import dataclass

from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine, VideoModel


def _latents(frames: int, height: int, width: int, channels: int = 16) -> int:
    return 4 * channels * (1 + (frames - 1) // 4) * (height // 8) * (width // 8)


def _grid(frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Return tokens along time, rows and columns; refuse what `reelweave sample` would refuse."""
    if remainder := (frames - 1) % 4:
        fits = frames - remainder
        raise UsageError(
            f"--frames {frames} do not fit the model: use {fits} or {fits + 4}, 1 + a multiple of 4"
        )
    return 1 + (frames - 1) // 4, *_places(height, width)


def _places(height: int, width: int) -> tuple[int, int]:
    if height % 16 or width % 16:
        raise UsageError(f"--size {height}x{width} does not fit the model: use multiples of 16")
    return height // 16, width // 16


def wan_14b(name: str, frames: int = 81, height: int = 720, width: int = 1280, steps: int = 50) -> VideoModel:
    """Return Wan 2.1's 14B, or Wan 2.2's, of whose two experts one runs at a time."""
    experts = 2 if name.startswith("wan2.2") else 1
    size = (frames, height, width)
    return VideoModel(
        name, 40, 5120, 40, 13824, experts * 14.3e9, _grid(*size), 512, 2, steps, _latents(*size)
    )


def wan_1_3b(name: str, frames: int = 81, height: int = 480, width: int = 832, steps: int = 50) -> VideoModel:
    """Return Wan 2.1 of 1.3B parameters."""
    size = (frames, height, width)
    return VideoModel(name, 30, 1536, 12, 8960, 1.4e9, _grid(*size), 512, 2, steps, _latents(*size))


def hunyuan(
    name: str, frames: int = 129, height: int = 720, width: int = 1280, steps: int = 50
) -> VideoModel:
    """Return HunyuanVideo, distilled: one pass a step, text within joint attention."""
    size = (frames, height, width)
    return VideoModel(
        name, 60, 3072, 24, 12288, 13e9, _grid(*size), 256, 1, steps, _latents(*size), own_text=True
    )


def open_sora(
    name: str, frames: int = 102, height: int = 720, width: int = 1280, steps: int = 30
) -> VideoModel:
    """Return Open-Sora 1.2, an ST-DiT of 28 pairs of layers, as ScaleFusion's paper runs it."""
    T = max(1, -(-frames * 5 // 17))
    grid, latents = (T, *_places(height, width)), 4 * 4 * T * (height // 8) * (width // 8)
    return VideoModel(name, 56, 1152, 16, 4608, 1.1e9, grid, 300, 2, steps, latents, spatial_temporal=True)


MODELS = {
    "wan2.1-t2v-1.3b": wan_1_3b,
    "wan2.1-t2v-14b": wan_14b,
    "wan2.2-t2v-a14b": wan_14b,
    "hunyuanvideo": hunyuan,
    "open-sora-1.2": open_sora,
}


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
        wan_14b("wan2.2-t2v-a14b", steps=40),
        OneGpu(denoise_s=348 - 4.2, **_B200_OTHER),
        SamplingMachine(gpus=1, gpus_per_node=72, node_bytes_per_s=NVLINK_5),
        {8: 48.1, 16: 25.6, 64: 8.5},
    ),
    "wan2.2 on b200, guidance over two": Curve(
        "TensorRT-LLM VisualGen, tech blog 25",
        wan_14b("wan2.2-t2v-a14b", steps=40),
        OneGpu(denoise_s=342.0, **_B200_OTHER),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_5),
        {2: 183.0},
    ),
    "hunyuanvideo on h100": Curve(
        "xDiT docs/performance/hunyuanvideo.md",
        hunyuan("hunyuanvideo"),
        OneGpu(denoise_s=1904.0),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_4),
        {2: 925.0, 4: 514.0, 8: 338.0},
    ),
    "hunyuanvideo on h20": Curve(
        "xDiT docs/performance/hunyuanvideo.md",
        hunyuan("hunyuanvideo"),
        OneGpu(denoise_s=6639.0),
        SamplingMachine(gpus=1, node_bytes_per_s=NVLINK_4),
        {8: 941.0},
    ),
}
