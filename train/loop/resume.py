"""What a run shares with the one it goes on from: the configuration, and each step's random numbers."""

import hashlib
from contextlib import suppress
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from loader.errors import UsageError
from loader.settings import first_difference
from train.checkpoint import Checkpoints
from train.step.batches import Stream

FREE = ("log", "checkpoint", "lost_after_s", "parallel", "fp8")
"""Parts of the configuration that may change whenever a run goes on, as may ``schedule.total_steps``."""


def resume(checkpoints: Checkpoints, stream: Stream, config: BaseModel) -> int:
    """Puts tensors and stream back to the latest checkpoint; the steps done by then, 0 where there is none.

    Raises:
        UsageError: it was made with another configuration.
        RunError: it is damaged.
    """
    state = checkpoints.latest()
    if state is None:
        return 0
    if differs := difference(state.config, config):
        raise UsageError(
            f"{checkpoints.uri(state.step)} was made with another configuration: {differs}; "
            "resume with the old value, or train into another folder"
        )
    checkpoints.load_(state)
    stream.load_state_dict(state.stream)
    return state.step


def difference(saved: dict[str, Any], config: BaseModel) -> str | None:
    """What keeps a run from going on from a checkpoint, in words; None where nothing does.

    Args:
        saved: the configuration in the checkpoint. Keys that came later count with today's defaults.
        config: of the run.
    """
    # Of a key that is gone, or a value that is refused now, the comparison tells.
    with suppress(ValidationError):
        saved = type(config).model_validate(saved).model_dump(mode="json")
    return first_difference(_bound(saved), _bound(config.model_dump(mode="json")))


def seed_step(seed: int, step: int, rank: int) -> None:
    """Sets the state of torch's generators before a step, so that no checkpoint need hold it.

    Noise and timesteps have seeds of their own, by sample; this is for what draws without one, such as dropout. Ranks
    that share a sample draw the same, hence a data-parallel ``rank``.
    """
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))


def _bound(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that must stay."""
    schedule = {name: value for name, value in config.get("schedule", {}).items() if name != "total_steps"}
    return {name: value for name, value in config.items() if name not in FREE} | {"schedule": schedule}
