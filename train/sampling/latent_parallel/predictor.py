"""Guided prediction of overlapping parts of the latents on groups of ranks, blended on every rank.

"Communication-Efficient Serving for Video Diffusion Models with Latent Parallelism", arXiv 2512.07350v1, and UNITE, its
artifact. Within a group any exact layout runs; between groups only latents travel.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.models.attention.positions import Window
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.sampling.latent_parallel.aids import (
    FINAL_FROM,
    Spread,
    channel_spread,
    combine_aided,
    rising,
    shared_spread,
    smooth_latents,
)
from reelweave.train.sampling.latent_parallel.parts import LatentDivision, divide
from reelweave.train.sampling.latent_parallel.rules import Rules
from reelweave.train.sampling.latent_parallel.weights import blend_weights
from reelweave.train.sampling.prediction.guidance import Guided
from reelweave.train.sampling.prediction.predictor import SchedulePoint
from reelweave.train.sampling.ranks.agreement import check_same


@dataclass(frozen=True, eq=False)
class LatentParallel:
    """`reelweave.train.sampling.prediction.predictor.Predictor` that divides the latents over groups of ranks.

    Attributes:
        guided: prediction of a part on the ranks of a group.
        rules: the mode's.
        patch: latent frames, rows and columns of the model's patch.
        groups: ranks with this one's place in every group.
        video: all ranks of the video, which must have the same latents.
        undivided: prediction on the ranks of all groups, for steps without division; None: every group runs it.
    """

    guided: Guided
    rules: Rules
    patch: tuple[int, int, int]
    groups: World
    video: World
    undivided: Guided | None = None

    def __post_init__(self) -> None:
        if self.guided.rescale:
            raise UsageError(
                "guidance rescale takes the spread of whole latents, and lp divides them: use its own aid, rescale"
            )
        if self.guided.cache is not None:
            raise UsageError("a cache compares whole latents, and lp divides them: leave one of them out")

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        """Return the blended prediction, the same bits on every rank.

        Raises:
            UsageError: no axis has a patch for every group.
            RunError: latents differ between ranks.
        """
        if window is not None:
            raise UsageError("Latent Parallelism divides whole videos, not windows of them")
        check_same(x_BCTHW, self.video, f"latents at point {point.step + 1} of {point.total}")
        grid = [n // p for n, p in zip(x_BCTHW.shape[2:], self.patch, strict=True)]
        division = divide(self.rules, grid, self.patch, self.groups.size, point.step, point.total)
        if division is None:
            prediction = self._combine_aided(
                self.undivided or self.guided, x_BCTHW, point, None, channel_spread
            )
        else:
            prediction = self._blend_parts(x_BCTHW, point, division)
        share = rising(_progress(point), FINAL_FROM, self.rules.aids.final_smoothing)
        return smooth_latents(prediction, share, self.rules.per_part)

    def _combine_aided(
        self,
        guided: Guided,
        x_BCTHW: torch.Tensor,
        point: SchedulePoint,
        window: Window | None,
        spread: Spread,
    ) -> torch.Tensor:
        """Return the guided prediction with the aids; of nothing, nothing."""
        predictions = (
            guided.predictions(x_BCTHW, point, window) if x_BCTHW.numel() else [x_BCTHW] * len(guided.passes)
        )
        rules = self.rules
        return combine_aided(
            predictions, guided.weights, rules.aids, _progress(point), spread, rules.per_part
        )

    def _blend_parts(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, division: LatentDivision
    ) -> torch.Tensor:
        """Return the prediction of all parts."""
        rank, dim = self.groups.rank, 2 + division.axis
        shares_KN = blend_weights(division, self.rules.ramp).to(x_BCTHW.device, x_BCTHW.dtype)
        shares = [_along(shares_KN[k, division.rows(k)], dim) for k in range(self.groups.size)]
        rows, window, guided = division.rows(rank), None, self.guided
        if self.rules.global_positions:
            T, H, W = x_BCTHW.shape[2:]
            t, h, w = (rows.start if axis == division.axis else 0 for axis in range(3))
            window = Window((t, h, w), (T, H, W))
        elif guided.channels is not None:
            guided = replace(guided, channels=[_rows(channel, dim, rows) for channel in guided.channels])
        spread = channel_spread
        if not self.rules.per_part:
            spread = partial(shared_spread, shares[rank], x_BCTHW[0, 0].numel(), self.groups)
        part = _rows(x_BCTHW, dim, rows).contiguous()
        part = self._combine_aided(guided, part, point, window, spread)
        blended = torch.zeros_like(x_BCTHW, dtype=part.dtype)
        if self.rules.reduce == "sum":
            _rows(blended, dim, rows).add_(part * shares[rank])
            dist.all_reduce(blended, group=self.groups.group)
            return blended
        group = self.groups.group or dist.group.WORLD
        assert group is not None  # there are several groups
        parts = torch.split(gather(part, division.lengths, group, dim), division.lengths, dim)
        for index, prediction in enumerate(parts):
            _rows(blended, dim, division.rows(index)).add_(prediction * shares[index])
        return blended


def _progress(point: SchedulePoint) -> float:
    return point.step / max(1, point.total - 1)


def _rows(x_BCTHW: torch.Tensor, dim: int, rows: slice) -> torch.Tensor:
    return x_BCTHW.narrow(dim, rows.start, rows.stop - rows.start)


def _along(weights_N: torch.Tensor, dim: int) -> torch.Tensor:
    """Return weights that broadcast along one dimension of [B, C, T, H, W]."""
    return weights_N.reshape(*(-1 if at == dim else 1 for at in range(5)))
