"""The learning rate as a function of the step."""

import math

from train.config.optimizer import OptimizerConfig, ScheduleConfig


def learning_rate(step: int, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """The rate of a step, counted from 0: a linear rise to ``lr``, then half a cosine.

    The first step of the warm-up has ``lr / warmup_steps``; the last step of the run comes within a step of
    ``lr * min_lr_ratio`` (Loshchilov and Hutter, "SGDR", 2017, eq. 5, without restarts).
    """
    if step < schedule.warmup_steps:
        return optimizer.lr * (step + 1) / schedule.warmup_steps
    after = schedule.total_steps - schedule.warmup_steps
    progress = min(1.0, (step - schedule.warmup_steps) / after) if after > 0 else 1.0
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return optimizer.lr * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * cosine)
