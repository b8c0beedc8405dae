"""The expert for the other times: as published, with adapters, or from a checkpoint of its own."""

from dataclasses import replace
from pathlib import Path

import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from reelweave.train.checkpoint.weights import Group
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.models.lora import load_adapters
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.models.published.experts import ALL_TIMES, HIGH_NOISE, other_expert
from reelweave.train.sampling.trained.load import Trained, compare_base, read_adapters, trained_weights


def with_experts(
    trained: Trained,
    device: torch.device,
    lora: Path | None = None,
    checkpoint: str | None = None,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    world: World | None = None,
) -> Trained:
    """Add the expert for the other times to a model that is one of two; return others as they are.

    Args:
        trained: the model.
        device: compute device.
        lora: adapters of the other expert, on its published weights.
        checkpoint: run or checkpoint of the other expert.
        weights: group of that checkpoint; None: the EMA if there is one.
        storage: configuration of the storage.
        world: ranks that load it together, as in `load_trained`.

    Raises:
        UsageError: there is no other expert, its folder is missing, or the adapters or the checkpoint are not its own.
    """
    model, dit = trained.config.model, trained.bundle.dit
    if dit.times == ALL_TIMES or not isinstance(model, DiffusersConfig):
        if lora is not None or checkpoint is not None:
            raise UsageError(
                f"{trained.checkpoint} is one model for all times: weights of a second expert do not belong to it"
            )
        return trained
    # Its weights: of a checkpoint, published ones with adapters, or published ones.
    config = trained.config.model_copy(update={"model": other_expert(model), "lora": None})
    name = trained.checkpoint
    if checkpoint is not None:
        saved, config = trained_weights(checkpoint, weights, storage, world, encoders=False)
        check_other(trained.config.modules, config.modules, saved.uri)
        bundle = _without_encoders(config.modules, trained.bundle)
        saved.load_(bundle.trained_weights())
        name = f"{name} + {saved.uri}"
    elif lora is not None:
        adapters = read_adapters(lora, other_expert(model))
        config = config.model_copy(update={"lora": adapters.config})
        compare_base(lora, adapters, config.modules, world)
        bundle = _without_encoders(config.modules, trained.bundle)
        load_adapters(bundle.dit, adapters.weights)
        name = f"{name} + {lora}"
    else:
        bundle = _without_encoders(config.modules, trained.bundle)
    # Which of the two is for the noisier times.
    other = bundle.dit.eval().requires_grad_(False)
    high, low = (dit, other) if model.subfolder == HIGH_NOISE else (other, dit)
    return replace(trained, checkpoint=name, experts=Experts.on(high, low, high.times[0], device))


def _without_encoders(modules: ModulesConfig, like: Bundle) -> Bundle:
    """Return modules on the CPU, with no encoders but their shapes."""
    empty_MD = torch.zeros(1, like.text.width)
    return Bundle(modules, stored=StoredEncoders(like.tokenizer.channels, empty_MD, like.text.pooled_width))


def check_other(modules: ModulesConfig, other: ModulesConfig, uri: str) -> None:
    """Check that a checkpoint's run is of the other expert, and as the first one's otherwise.

    Raises:
        UsageError: it is not.
    """
    assert isinstance(modules.model, DiffusersConfig)
    expected = other_expert(modules.model)
    theirs = other.model
    if not isinstance(theirs, DiffusersConfig) or (theirs.name, theirs.subfolder) != (
        expected.name,
        expected.subfolder,
    ):
        actual = f"{theirs.name}, {theirs.subfolder}" if isinstance(theirs, DiffusersConfig) else theirs.kind
        raise UsageError(f"{uri} is of {actual}: take a run of {expected.name}, {expected.subfolder}")
    if theirs.boundary != modules.model.boundary or other.first_frames != modules.first_frames:
        raise UsageError(
            f"{uri} was trained with another model.boundary or other train.first_frames than the first expert: take"
            " runs that agree"
        )
