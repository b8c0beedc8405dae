"""The model of a checkpoint, ready to sample."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from loader.errors import UsageError, first_line
from train import checkpoint
from train.config import TrainConfig
from train.models.bundle import Bundle
from train.saved import checkpoint_folder, weights_file


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds.

    Attributes:
        folder: of the checkpoint.
        config: of its run.
        bundle: the model.
        step: optimizer steps done.
        averaged: whether the weights are the average that the run kept.
    """

    folder: Path
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
    folder = checkpoint_folder(path)
    state = checkpoint.read_state(folder)
    try:
        config = TrainConfig.model_validate(state.config)
    except ValidationError as error:
        raise UsageError(
            f"{folder / checkpoint.STATE} describes a model that this version does not know: {first_line(error)}"
        ) from error
    bundle = Bundle(config)
    file = weights_file(folder, averaged)
    checkpoint.load_(file, bundle.trained())
    return Trained(folder, config, bundle.to(device).eval(), state.step, file.name == checkpoint.EMA)
