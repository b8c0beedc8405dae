"""Trained model of a checkpoint, ready to sample."""

from dataclasses import dataclass

import torch
from pydantic import ValidationError

from loader.errors import UsageError, first_line
from loader.storage import StorageConfig
from train.checkpoint.weights import Group, weights_of
from train.config.run import TrainConfig
from train.models.bundle import Bundle


@dataclass(frozen=True)
class Trained:
    """Model restored from a checkpoint.

    Attributes:
        checkpoint: URI of the checkpoint.
        config: configuration of its run.
        bundle: modules with trained weights.
        step: number of finished optimizer steps.
        weights: restored group of weights.
    """

    checkpoint: str
    config: TrainConfig
    bundle: Bundle
    step: int
    weights: Group


def load_trained(
    named: str,
    device: torch.device,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Trained:
    """Load the model of a checkpoint.

    Args:
        named: folder or prefix of a run, for its newest checkpoint, or of one checkpoint.
        device: target device.
        weights: group of weights; None: the EMA if there is one.
        storage: configuration of the storage.

    Raises:
        UsageError: there is no checkpoint, no such weights, or this version does not support its model.
        RunError: it is damaged.
    """
    saved = weights_of(named, weights, storage)
    try:
        config = TrainConfig.model_validate(saved.state.config)
    except ValidationError as error:
        raise UsageError(
            f"{saved.uri} describes a model that this version does not know: {first_line(error)}"
        ) from error
    bundle = Bundle(config)
    saved.load_(bundle.trained())
    return Trained(saved.uri, config, bundle.to(device).eval(), saved.state.step, saved.group)
