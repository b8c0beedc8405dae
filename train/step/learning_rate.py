"""The learning rate as a function of the step."""

import math

from reelweave.train.config.optimizer import OptimizerConfig, ScheduleConfig

_DECAY = 0.2  # of all steps, where wsd names none


def learning_rate(step: int, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """Return the rate of a step, counted from 0: a linear rise to ``lr``, then the schedule's curve.

    The first step of the warm-up has ``lr / warmup_steps``. No step has less than ``lr * min_lr_ratio``
    behind it. With a cosine, a line or wsd the last step of the run comes within a step of that.

    Cosine: Loshchilov and Hutter, "SGDR", 2017, eq. 5, without restarts. Warmup-stable-decay: Hu et al., "MiniCPM",
    2024, eq. 1, with a linear decay. Inverse square root: Vaswani et al. 2017, eq. 3.
    """
    if step < schedule.warmup_steps:
        return optimizer.lr * (step + 1) / schedule.warmup_steps
    share = _share(step - schedule.warmup_steps, schedule)
    return optimizer.lr * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * share)


def unreached_rate(optimizer: OptimizerConfig, schedule: ScheduleConfig) -> str:
    """Return a sentence if the warm-up is longer than the run, which then never has the full rate; else nothing."""
    if schedule.warmup_steps <= schedule.total_steps:
        return ""
    last = learning_rate(schedule.total_steps - 1, optimizer, schedule)
    return (
        f"schedule.warmup_steps={schedule.warmup_steps} is above total_steps={schedule.total_steps}: the learning rate"
        f" rises to {last:.3g} in the last step, and never reaches lr={optimizer.lr:.3g}"
    )


def _share(behind: int, schedule: ScheduleConfig) -> float:
    """Return the share of the way from the least rate to the full one, ``behind`` steps after the warm-up."""
    after = schedule.total_steps - schedule.warmup_steps
    remaining = max(0.0, 1 - behind / after) if after > 0 else 0.0
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "linear":
        return remaining
    if schedule.kind == "wsd":
        decay = schedule.decay_steps or max(1, round(_DECAY * schedule.total_steps))
        return min(1.0, max(0.0, (after - behind) / min(decay, max(1, after))))
    if schedule.kind == "inverse_sqrt":
        full, min_ratio = max(1, schedule.warmup_steps), schedule.min_lr_ratio
        # The rate itself falls as 1 / sqrt(step), and not the part of it above the least.
        return (
            1.0
            if min_ratio == 1
            else max(0.0, (math.sqrt(full / (full + behind)) - min_ratio) / (1 - min_ratio))
        )
    return (1 + math.cos(math.pi * (1 - remaining))) / 2
