"""Reconstruction metrics per frame: PSNR, SSIM and LPIPS."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from reelweave.train.config.vae import SSIM_MIN_PX
from reelweave.train.distributed.world import World
from reelweave.train.vae.losses.perceptual import Perceptual

_C1, _C2 = 0.01**2, 0.03**2
_LEAST_ERROR = 1e-10
"""Least squared error of pixels in [0, 1]: caps PSNR at 100 dB."""


@dataclass(frozen=True)
class FrameMetric:
    """One metric over frames, each counted once.

    Attributes:
        mean: mean over all frames.
        first: mean over the first frames of clips, which a causal tokenizer encodes alone.
        rest: mean over all other frames; None if all clips are images.
        by_frame: means by frame index.
    """

    mean: float
    first: float
    rest: float | None
    by_frame: tuple[float, ...]


def psnr(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return the peak signal-to-noise ratio of each frame in dB, [B, T]: 10 log10(1 / mean squared error).

    Pixels are in [0, 1].
    """
    errors_BT = (made_BCTHW - video_BCTHW).square().mean(dim=(1, 3, 4))
    return -10 * errors_BT.clamp_min(_LEAST_ERROR).log10()


def ssim(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return the structural similarity of each frame, [B, T]; pixels in [0, 1].

    Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity", 2004, eq. 13:
    Gaussian window of 11 x 11 and deviation 1.5, K = (0.01, 0.03). The mean is over colours and over positions
    with the whole window inside the frame, as in the authors' code. By contrast, torchmetrics also counts
    positions beyond the border.
    """
    offsets_11 = (
        torch.arange(SSIM_MIN_PX, dtype=video_BCTHW.dtype, device=video_BCTHW.device) - SSIM_MIN_PX // 2
    )
    line_11 = (-offsets_11.square() / (2 * 1.5**2)).exp()
    line_11 = line_11 / line_11.sum()

    def window_means(x_BCTHW: torch.Tensor) -> torch.Tensor:
        x_N1HW = x_BCTHW.flatten(0, 2).unsqueeze(1)
        mean_N1HW = F.conv2d(F.conv2d(x_N1HW, line_11.view(1, 1, -1, 1)), line_11.view(1, 1, 1, -1))
        return mean_N1HW.reshape(*x_BCTHW.shape[:3], *mean_N1HW.shape[2:])

    x, y = window_means(made_BCTHW), window_means(video_BCTHW)
    variances = window_means(made_BCTHW.square() + video_BCTHW.square()) - x.square() - y.square()
    covariance = window_means(made_BCTHW * video_BCTHW) - x * y
    alike = (2 * x * y + _C1) * (2 * covariance + _C2) / ((x.square() + y.square() + _C1) * (variances + _C2))
    return alike.mean(dim=(1, 3, 4))


def measures(
    made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor, perceptual: Perceptual | None
) -> dict[str, torch.Tensor]:
    """Return each metric per frame by name, [B, T]; pixels in [-1, 1], clipped as for viewing."""
    made_BCTHW = made_BCTHW.clamp(-1, 1)
    reconstructed, video = (made_BCTHW + 1) / 2, (video_BCTHW + 1) / 2
    metrics = {"psnr": psnr(reconstructed, video), "ssim": ssim(reconstructed, video)}
    if perceptual:
        metrics["lpips"] = perceptual(made_BCTHW, video_BCTHW)
    return metrics


class Quality:
    """Accumulator of metrics over clips of any length."""

    def __init__(self) -> None:
        self._sums_T: dict[str, torch.Tensor] = {}

    def add(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """Add the metrics of some clips, [B, T] each, always with the same names."""
        for name, each_BT in metrics.items():
            own_T = torch.stack(
                [each_BT.double().sum(dim=0), torch.full_like(each_BT[0], len(each_BT)).double()]
            )
            before_T = self._sums_T.get(name, own_T.new_zeros(2, 0))
            frames = max(own_T.shape[1], before_T.shape[1])
            self._sums_T[name] = _fill_frames(before_T, frames) + _fill_frames(own_T, frames)

    def over(self, world: World, names: tuple[str, ...]) -> dict[str, FrameMetric]:
        """Return the metrics over all ranks' clips; empty without clips. A collective.

        Args:
            world: the ranks.
            names: names of the metrics, the same on all ranks, even without clips.
        """
        frames = world.largest(max((sums.shape[1] for sums in self._sums_T.values()), default=0))
        empty = torch.zeros(2, 0, dtype=torch.float64, device=world.device)
        sums = {name: _fill_frames(self._sums_T.get(name, empty), frames) for name in names}
        world.sum_(list(sums.values()))
        return {name: _frame_metric(own_2T) for name, own_2T in sums.items()} if frames else {}


def _fill_frames(sums_2T: torch.Tensor, frames: int) -> torch.Tensor:
    return F.pad(sums_2T, (0, frames - sums_2T.shape[1]))


def _frame_metric(sums_2T: torch.Tensor) -> FrameMetric:
    totals, counts = sums_2T.tolist()
    rest = sum(totals[1:]) / sum(counts[1:]) if sum(counts[1:]) else None
    by_frame = tuple(total / count for total, count in zip(totals, counts, strict=True))
    return FrameMetric(sum(totals) / sum(counts), by_frame[0], rest, by_frame)
