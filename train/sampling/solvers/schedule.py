"""Times at which sampling evaluates the model."""

import math
from dataclasses import replace

import numpy as np
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.objectives.ddpm import DDPM
from reelweave.train.objectives.flow import RectifiedFlow, shift_factor, shift_time
from reelweave.train.objectives.level import Level, Objective
from reelweave.train.sampling.config import SampleConfig

_PUBLISHED_LEVELS = 1000
"""Timesteps that published flows are numbered by (``num_train_timesteps`` of their schedulers)."""
_BESIDE_NOISE = 1e-6
"""Distance of the first published time from noise alone, where log(signal / noise) is infinite."""


def sampling_levels(objective: Objective, config: SampleConfig, tokens: int) -> Level:
    """Return the levels of the steps, from most noise to least, float64 [steps] each.

    Args:
        objective: objective of the model.
        config: number of steps, or explicit times.
        tokens: number of video tokens.

    Raises:
        UsageError: the objective has fewer levels than steps, or other times.
    """
    if config.timesteps == "published":
        return _published_levels(objective, config.steps, tokens)
    return objective.level(sampling_times(objective, config, tokens))


def _published_levels(objective: Objective, steps: int, tokens: int) -> Level:
    """Return the levels of diffusers' UniPCMultistepScheduler with ``use_flow_sigmas``, at the shift of training.

    They are spaced evenly from 1 to 1/1000, and the model is told whole timesteps.
    """
    if not isinstance(objective, RectifiedFlow):
        raise UsageError(
            "timesteps=published are those of a flow, and the model was trained with another objective: leave them out"
        )
    if steps >= _PUBLISHED_LEVELS:
        raise UsageError(
            f"steps={steps}: published flows have {_PUBLISHED_LEVELS} timesteps, so take fewer steps"
        )
    # NumPy's spacing, whose last bits decide where a timestep is cut.
    even = torch.from_numpy(np.linspace(1, 1 / _PUBLISHED_LEVELS, steps + 1)[:-1])
    times = shift_time(even, shift_factor(objective.config.shift, tokens)).clamp(max=1 - _BESIDE_NOISE)
    # Timesteps are cut before the times are rounded to float32, in which the scheduler keeps them.
    timesteps = (times * _PUBLISHED_LEVELS).floor() / _PUBLISHED_LEVELS
    return replace(objective.level(times.float().double()), timestep_input=timesteps)


def sampling_times(objective: Objective, config: SampleConfig, tokens: int) -> torch.Tensor:
    """Return the times of a configuration in the objective's unit, from most noise to least, float64.

    Args:
        objective: objective of the model.
        config: number of steps, or explicit times.
        tokens: number of video tokens.

    Raises:
        UsageError: the objective has fewer levels than steps, or other times.
    """
    if not isinstance(config.timesteps, tuple):
        return objective.schedule(config.steps, tokens)
    times = torch.tensor(config.timesteps, dtype=torch.float64)
    times_text = ", ".join(f"{time:g}" for time in config.timesteps)
    is_discrete = isinstance(objective, DDPM)
    max_time = float(objective.schedule(1, tokens)[0])
    if not (times.diff() < 0).all():
        raise UsageError(f"timesteps {times_text} must fall from most noise to least")
    if times[0] > max_time or times[-1] < 0 or (times[-1] == 0 and not is_discrete):
        low = "0 to" if is_discrete else "above 0, up to"
        raise UsageError(
            f"timesteps {times_text} must be {low} {max_time:g}, the most noise that the model was trained on"
        )
    if is_discrete and any(not math.isclose(time, round(time)) for time in config.timesteps):
        raise UsageError(
            f"timesteps {times_text} must be whole numbers: the model was trained on numbered levels"
        )
    return times
