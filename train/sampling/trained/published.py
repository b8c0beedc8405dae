"""Differences of a configuration to what its published model was trained with: said at the start, or refused."""

import json
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.published.folder import SCHEDULER, scheduler_description
from reelweave.train.objectives.published import Difference, differences


def compare_with_published(config: TrainConfig, dit: Denoiser, new: bool) -> list[str]:
    """Return a line for each part, objective and text, that differs from what the model was trained with.

    Args:
        config: configuration of a run, or of samples of the published model.
        dit: its model; there are no lines for models of ours.
        new: True refuses another prediction; False where something was trained with it already.

    Raises:
        UsageError: the model predicts another quantity than the objective takes it for.
    """
    if not isinstance(config.model, DiffusersConfig):
        return []
    lines = dit.compare_text(config.text)
    try:
        scheduler = scheduler_description(config.model.name, "model.name")
    except UsageError as error:
        return [*lines, f"objective is not compared with the published one: {error}"]
    if different := differences(config.objective, scheduler):
        line = _sentence(config.model, config.objective.name, different)
        if new and any(difference.key == "prediction" for difference in different):
            raise UsageError(line)
        lines.append(line)
    return lines


def _sentence(model: DiffusersConfig, objective: str, different: list[Difference]) -> str:
    values = ", ".join(
        f"{key} is {_yaml(configured)}, there {_yaml(published)}" for key, configured, published in different
    )
    settings = ", ".join(
        f"shift: {{kind: constant, factor: {_yaml(published)}}}"
        if key == "shift.factor"
        else f"{key}: {_yaml(published)}"
        for key, _, published in different
    )
    return (
        f"objective differs from {SCHEDULER} of {model.name}: {values};"
        f" set, as published, objective: {{name: {objective}, {settings}}}"
    )


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
