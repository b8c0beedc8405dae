"""Differences of a configuration to what its published model was trained with: said at the start, or refused."""

import json
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.published.folder import SCHEDULER, scheduler_description
from reelweave.train.objectives.published import Compared, compare


def compare_with_published(modules: ModulesConfig, dit: Denoiser, new: bool) -> list[str]:
    """Return a line for each part, objective and text, that differs from what the model was trained with.

    Keys of the model that it does not read have a line, too.

    Args:
        modules: configuration of a run, or of samples of the published model.
        dit: its model; there are no lines for models of ours.
        new: True refuses another prediction; False where something was trained with it already.

    Raises:
        UsageError: the model predicts another quantity than the objective takes it for.
    """
    if not isinstance(modules.model, DiffusersConfig):
        return []
    lines = [*dit.notices(), *dit.compare_text(modules.text)]
    try:
        scheduler = scheduler_description(modules.model.name, "model.name")
    except UsageError as error:
        return [*lines, f"objective is not compared with the published one: {error}"]
    if not scheduler:
        return [
            *lines,
            f"objective is not compared with the published one: {modules.model.name} has no {SCHEDULER}",
        ]
    compared = compare(modules.objective, scheduler)
    if different := [value.key for value in compared if value.differs]:
        line = _sentence(modules.model, modules.objective.name, compared)
        if new and "prediction" in different:
            raise UsageError(line)
        lines.append(line)
    return lines


def _sentence(model: DiffusersConfig, objective: str, compared: list[Compared]) -> str:
    values = ", ".join(
        f"{value.key} is {_yaml(value.configured)}, there {_yaml(value.published)}"
        for value in compared
        if value.differs
    )
    # Whole, so that it can be copied: what differs, and what a configuration must name beside it.
    settings = ", ".join(
        f"shift: {{kind: constant, factor: {_yaml(value.published)}}}"
        if value.key == "shift.factor"
        else f"{value.key}: {_yaml(value.published)}"
        for value in compared
        if value.differs or value.published != value.default
    )
    return (
        f"objective differs from {SCHEDULER} of {model.name}: {values};"
        f" set, as published, objective: {{name: {objective}, {settings}}}"
    )


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
