"""Metrics of one video. Names are VBench's where they mean the same (Huang et al., "VBench", 2024)."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from reelweave.curate.filters.flow import flow
from reelweave.curate.filters.sharpness import sharpness
from reelweave.train.config.vae import SSIM_MIN_PX
from reelweave.train.vae.losses.perceptual import Perceptual
from reelweave.train.vae.quality import psnr, ssim

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_FLOW_FPS = 8.0
_FAST = 6 / 256
"""Motion of a dynamic frame, in short sides of the picture."""
_DYNAMIC_SHARE = 4 / 16
"""Share of frames that must be dynamic."""


def scores(video_CTHW: NDArray[np.uint8], fps: float) -> dict[str, float | None]:
    """Return the metrics that need nothing but the video; None where it has too few frames.

    Args:
        video_CTHW: RGB, [3, frames, height, width].
        fps: frames per second.
    """
    grey_THW = np.einsum("cthw,c->thw", video_CTHW, _LUMA, dtype=np.float32)
    return {
        "temporal_flickering": temporal_flickering(video_CTHW),
        "motion_smoothness_linear": motion_smoothness_linear(video_CTHW),
        **motion(grey_THW, fps),
        "sharpness": sharpness(grey_THW),
    }


def temporal_flickering(video_CTHW: NDArray[np.uint8]) -> float | None:
    """Return 1 less the mean absolute difference of neighbouring frames over 255, as VBench has it.

    VBench asks this of still scenes only: motion lowers it.
    """
    if video_CTHW.shape[1] < 2:
        return None
    differences = [
        _difference(video_CTHW[:, frame], video_CTHW[:, frame + 1])
        for frame in range(video_CTHW.shape[1] - 1)
    ]
    return 1 - float(np.mean(differences)) / 255


def motion_smoothness_linear(video_CTHW: NDArray[np.uint8]) -> float | None:
    """Return 1 less the mean absolute difference of frames to the mean of both neighbours, over 255.

    VBench's motion_smoothness takes the frame that a network interpolates in place of the mean.
    """
    frames = video_CTHW.shape[1]
    if frames < 3:
        return None
    differences = []
    for frame in range(1, frames - 1):
        before, after = (video_CTHW[:, other].astype(np.float32) for other in (frame - 1, frame + 1))
        differences.append(_difference(video_CTHW[:, frame], (before + after) / 2))
    return 1 - float(np.mean(differences)) / 255


def motion(grey_THW: NDArray[np.float32], fps: float) -> dict[str, float | None]:
    """Return ``motion``, as curation scores clips, and ``dynamic_degree``, VBench's rule.

    ``motion``: mean motion in picture diagonals per second. ``dynamic_degree``: 1 if the fastest
    part moves by more than 6 / 256 of the short side in a quarter of the frames, of 8 per second; else 0.
    Its mean over videos is the share of dynamic ones. Motion is by phase correlation of windows, where VBench has RAFT
    and the fastest 5 % of pixels.
    """
    stride = max(1, round(fps / _FLOW_FPS))
    grey_THW = grey_THW[::stride]
    if len(grey_THW) < 2:
        return {"motion": None, "dynamic_degree": None}
    flow_THW2 = flow(grey_THW)
    height, width = grey_THW.shape[1:]
    fast = flow_THW2.fastest * np.hypot(height, width) / min(height, width) > _FAST
    seconds = (len(grey_THW) - 1) * stride / fps
    return {
        "motion": float(flow_THW2.motion.sum(dtype=np.float64)) / seconds,
        "dynamic_degree": float(fast.sum() >= max(1, round(_DYNAMIC_SHARE * len(grey_THW)))),
    }


def compare_videos(
    video_CTHW: NDArray[np.uint8], reference_CTHW: NDArray[np.uint8], perceptual: Perceptual | None
) -> dict[str, float]:
    """Return PSNR, SSIM and with a network LPIPS to a reference, means over frames.

    Args:
        video_CTHW: the video, [3, frames, height, width].
        reference_CTHW: reference of the same shape.
        perceptual: LPIPS.
    """
    metrics: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"psnr": psnr}
    if min(video_CTHW.shape[2:]) >= SSIM_MIN_PX:
        metrics["ssim"] = ssim
    if perceptual is not None:
        metrics["lpips"] = lambda sampled, real: perceptual(2 * sampled - 1, 2 * real - 1)
    sums = dict.fromkeys(metrics, 0.0)
    frames = video_CTHW.shape[1]
    with torch.no_grad():
        for frame in range(frames):  # one at a time, for memory
            pair = (x[None, :, frame : frame + 1] for x in (video_CTHW, reference_CTHW))
            made_THWC, real = (torch.from_numpy(x.astype(np.float32)) / 255 for x in pair)
            for name, metric in metrics.items():
                sums[name] += float(metric(made_THWC, real))
    return {name: total / frames for name, total in sums.items()}


def _difference(first: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    return float(np.abs(first.astype(np.float32) - other.astype(np.float32)).mean(dtype=np.float64))
