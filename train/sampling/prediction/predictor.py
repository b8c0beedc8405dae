"""Interfaces of sampling: a model on its ranks, and the guided prediction that solvers follow."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.objectives.level import Level


class Conditions(NamedTuple):
    """Conditions of one model pass.

    Attributes:
        context_BMD: text embeddings of B videos, [B, M, D].
        mask_BM: True for valid text tokens, bool.
    """

    context_BMD: torch.Tensor
    mask_BM: torch.Tensor


class SchedulePoint(NamedTuple):
    """Point of the sampling schedule.

    Attributes:
        step: index of the point, from 0 at most noise.
        total: number of points.
        level: noise level, [1] each.
    """

    step: int
    total: int
    level: Level


class ModelRunner(Protocol):
    """Model on the ranks of an exact layout: `WholeModel`, or one that shares the work of a pass."""

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W]; a collective with equal arguments and results on its ranks.

        Args:
            x_BCTHW: scaled noisy latents.
            timestep_input_B: timestep input of the objective.
            conditions: text.
            window: place of the latents in a larger video; None: they are whole.

        Raises:
            UsageError: the model or the layout supports no windows.
        """


class Predictor(Protocol):
    """Guided prediction of a whole step: `Guided`, or a layout around it that divides the latents."""

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        """Return the prediction for noisy latents, at least float32 [B, C, T, H, W]; a collective."""


@dataclass(frozen=True, eq=False)
class WholeModel:
    """`ModelRunner` that runs the model as a whole, with any sharding of its weights.

    Attributes:
        dit: the model.
    """

    dit: Denoiser

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        window_args = () if window is None else (window,)
        prediction_BCTHW: torch.Tensor = self.dit(x_BCTHW, timestep_input_B, *conditions, *window_args)
        return prediction_BCTHW
