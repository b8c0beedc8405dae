"""The model of a checkpoint, ready to sample."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from loader.errors import UsageError, first_line
from train.checkpoint.folder import located
from train.checkpoint.pieces import piece_of
from train.checkpoint.reading import load_, shapes_of
from train.checkpoint.state import read_state
from train.config import TrainConfig
from train.models.bundle import Bundle


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds.

    Attributes:
        checkpoint: its URI.
        config: of its run.
        bundle: the model.
        step: optimizer steps done.
        averaged: whether the weights are the average that the run kept.
    """

    checkpoint: str
    config: TrainConfig
    bundle: Bundle
    step: int
    averaged: bool


def load_trained(path: Path, device: torch.device, averaged: bool = True) -> Trained:
    """The model of a checkpoint's folder, or of the latest checkpoint of a run's folder.

    Args:
        path: of either.
        device: where the model goes.
        averaged: takes the average of the weights where the checkpoint has one.

    Raises:
        UsageError: there is no checkpoint, or it is of a model that this version does not know.
        RunError: it is damaged.
    """
    storage, folder = located(str(path))
    state = read_state(storage, folder)
    try:
        config = TrainConfig.model_validate(state.config)
    except ValidationError as error:
        raise UsageError(
            f"{storage.uri(folder)} describes a model that this version does not know: {first_line(error)}"
        ) from error
    bundle = Bundle(config)
    averaged = averaged and "ema" in state.groups
    group, weights = "ema" if averaged else "model", bundle.trained()
    shapes = shapes_of([piece_of(group, name, weight) for name, weight in weights.items()])
    load_(storage, folder, state, group, weights, shapes)
    return Trained(storage.uri(folder), config, bundle.to(device).eval(), state.step, averaged)
