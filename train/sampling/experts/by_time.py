"""Experts as the sampler calls them: a runner that brings one to the device, and the choice between both."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, Predictor, SchedulePoint


@dataclass(frozen=True, eq=False)
class ExpertRunner:
    """`reelweave.train.sampling.prediction.predictor.ModelRunner` of one expert, which is brought to the device first.

    Attributes:
        inner: runner of the model.
        model: the expert.
        experts: both.
    """

    inner: ModelRunner
    model: Denoiser
    experts: Experts

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W]; as in `reelweave.train.sampling.prediction.predictor.ModelRunner`."""
        self.experts.bring(self.model)
        return self.inner(x_BCTHW, timestep_input_B, conditions, window)


@dataclass(frozen=True, eq=False)
class ByTime:
    """`reelweave.train.sampling.prediction.predictor.Predictor` that asks one of two, by the point of the schedule.

    Attributes:
        high_noise: prediction from the boundary on.
        low_noise: prediction below the boundary.
        is_high: True for each point of the schedule from the boundary on.
    """

    high_noise: Predictor
    low_noise: Predictor
    is_high: Sequence[bool]

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        """Return the prediction of the expert for this point; see `reelweave.train.sampling.prediction`."""
        predict = self.high_noise if self.is_high[point.step] else self.low_noise
        return predict(x_BCTHW, point, window)
