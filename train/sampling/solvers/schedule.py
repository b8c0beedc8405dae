"""Times at which sampling evaluates the model."""

import math

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.objectives.ddpm import DDPM
from reelweave.train.objectives.level import Objective
from reelweave.train.sampling.config import SampleConfig


def sampling_times(objective: Objective, config: SampleConfig, tokens: int) -> torch.Tensor:
    """Return the times of a configuration in the objective's unit, from most noise to least, float64.

    Args:
        objective: objective of the model.
        config: number of steps, or explicit times.
        tokens: number of video tokens.

    Raises:
        UsageError: the objective has fewer levels than steps, or other times.
    """
    if config.timesteps is None:
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
