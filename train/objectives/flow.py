"""Rectified flow: the model predicts the velocity from data (t = 0) to noise (t = 1).

Liu et al., "Flow Straight and Fast", 2022, eq. 1. Times and shift: Esser et al., "Scaling Rectified Flow
Transformers" (SD3), 2024.
"""

import math
from dataclasses import dataclass

import torch

from reelweave.train.config.objective import ConstantShift, FlowConfig, RootShift, Shift
from reelweave.train.objectives.level import Level, quantile

_HALVINGS = 50


@dataclass(frozen=True)
class RectifiedFlow:
    """Forward process x_t = (1 - t) x_0 + t eps; the target is eps - x_0 and the timestep input t.

    Attributes:
        config: distribution of times.
        times: least and greatest time of training: the distribution is cut off there, and keeps its shape between.
    """

    config: FlowConfig
    times: tuple[float, float] = (0.0, 1.0)

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return a time: logit-normal (SD3, eq. 19), uniform, or heavy-tailed (eq. 20), then shifted."""
        if self.times == (0.0, 1.0):
            return self._time(normal, tokens)
        low, high = self.times
        share_low, share_high = (self._share_below(t, tokens) for t in self.times)
        inside = torch.special.ndtri(share_low + quantile(normal) * (share_high - share_low))
        return self._time(inside, tokens).clamp(low, high).to(normal.dtype)

    def level(self, times_B: torch.Tensor) -> Level:
        """Return levels; cosmap weights are SD3's eq. 21."""
        t, ones = times_B.double(), torch.ones_like(times_B, dtype=torch.float64)
        weight = ones if self.config.weighting == "none" else 2 / (math.pi * (1 - 2 * t + 2 * t**2))
        return Level(1 - t, t, ones, t, -ones, ones, weight)

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:
        """Return even steps from 1 to 0, shifted as in training."""
        t = torch.linspace(1, 1 / steps, steps, dtype=torch.float64)
        return shift_time(t, shift_factor(self.config.shift, tokens))

    def _time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the time at a quantile of the whole distribution."""
        config = self.config
        if config.time == "logit_normal":
            t = torch.sigmoid(config.time_mean + config.time_std * normal)
        else:
            t = quantile(normal)
            if config.time == "mode":
                # Equation 20 falls with u, so take 1 - u.
                t = t - config.mode_scale * (torch.sin(math.pi / 2 * t) ** 2 - t)
            t = t.to(normal.dtype)
        return shift_time(t, shift_factor(config.shift, tokens))

    def _share_below(self, time: float, tokens: int) -> float:
        """Return the share of the whole distribution below a time, by bisection of its quantiles."""
        if time in (0.0, 1.0):
            return time
        below, above = 0.0, 1.0
        for _ in range(_HALVINGS):
            share = (below + above) / 2
            normal = torch.special.ndtri(torch.tensor(share, dtype=torch.float64))
            if float(self._time(normal, tokens)) < time:
                below = share
            else:
                above = share
        return (below + above) / 2


def shift_time(t: torch.Tensor, factor: float) -> torch.Tensor:
    """Return s t / (1 + (s - 1) t), at which noise over signal is s times that at t (SD3, eq. 23)."""
    return factor * t / (1 + (factor - 1) * t)


def shift_factor(shift: Shift, tokens: int) -> float:
    """Return the shift s for a number of video tokens."""
    if isinstance(shift, ConstantShift):
        return shift.factor
    if isinstance(shift, RootShift):
        return math.sqrt(tokens / shift.base_tokens)
    slope = (shift.max_mu - shift.base_mu) / (shift.max_tokens - shift.base_tokens)
    return math.exp(shift.base_mu + slope * (tokens - shift.base_tokens))
