"""The model of a checkpoint, ready to sample."""

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
    """What a checkpoint holds.

    Attributes:
        checkpoint: its URI.
        config: of its run.
        bundle: the model.
        step: optimizer steps done.
        weights: which of them the model has.
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
    """The model of a checkpoint.

    Args:
        named: folder or prefix of a run, whose newest checkpoint is taken, or of one of its checkpoints.
        device: where the model goes.
        weights: which of them; None: their average where there is one.
        storage: how it is reached.

    Raises:
        UsageError: there is no checkpoint, no such weights, or it is of a model that this version does not know.
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
