"""Model of a checkpoint or a published one, ready to sample."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError

from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.storage import StorageConfig
from reelweave.train.checkpoint.state import BaseWeights, CheckpointState
from reelweave.train.checkpoint.weights import Group, Weights, weights_of
from reelweave.train.config.lora import LoraConfig, adapters_file
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import ALONE, World
from reelweave.train.models.build import published_layers
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.lora import load_adapters
from reelweave.train.models.precision.narrow import narrow_
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.models.published.formats.adapters import read_adapters_file
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.trained.base import base_weights, check_base, keep_base
from reelweave.train.sampling.trained.frozen_parts import check_parts, frozen_parts
from reelweave.train.sampling.trained.origin import other_base, stated_base
from reelweave.train.sampling.trained.published import compare_with_published

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """Model restored from a checkpoint.

    Attributes:
        checkpoint: URI of the checkpoint.
        config: configuration of its run.
        bundle: modules with trained weights.
        step: number of finished optimizer steps.
        weights: restored group of weights.
        experts: the model and the one for other times (`reelweave.train.sampling.experts.loading`); None: it
            is for all times.
        base: weights under the adapters that the run trained; None: none, or unknown.
        fps: frames per second that the run sampled clips at; None: at whatever rates they have, or unknown.
        ranks: grid of training that holds the weights (`reelweave.train.sampling.in_training`); None: every
            rank has all of them.
    """

    checkpoint: str
    config: TrainConfig
    bundle: Bundle
    step: int
    weights: Group
    experts: Experts | None = None
    ranks: Ranks | None = None
    base: BaseWeights | None = None
    fps: float | None = None

    @property
    def present(self) -> Sequence[Denoiser]:
        """Models whose whole weights are on the compute device, from which they may be moved."""
        if self.ranks is not None:
            return []
        return [self.bundle.dit] if self.experts is None else self.experts.present


def load_trained(
    named: str,
    device: torch.device,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    world: World | None = None,
    as_published: bool = False,
) -> Trained:
    """Load the model of a checkpoint.

    Args:
        named: folder or prefix of a run, for its newest checkpoint, or of one checkpoint.
        device: target device.
        weights: group of weights; None: the EMA if there is one.
        storage: configuration of the storage.
        world: ranks that load it together, of which the first reads what is compared; None: this process alone.
        as_published: keep the weights under adapters as they are, where the run held them in fewer bits
            (``lora.base_dtype``).

    Raises:
        UsageError: there is no checkpoint, no such weights, or this version does not support its model.
        RunError: it is damaged.
    """
    saved, config = trained_weights(named, weights, storage, world)
    bundle = Bundle(config.modules)
    saved.load_(bundle.trained_weights())
    if config.lora and config.lora.base_dtype and not as_published:
        for layer in bundle.dit.frozen_layers():  # each on the device, where all of them may have no room
            narrow_([layer.to(device)], config.lora.base_dtype)
    model = bundle.to(device).eval()
    state = saved.state
    return Trained(saved.uri, config, model, state.step, saved.group, base=state.base, fps=sampled_fps(state))


def load_adapters_alone(
    named: str,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Trained:
    """Load the adapters of a run on a published model, whose own weights stay on the meta device, as do the encoders.

    Arguments and errors as in `load_trained`.

    Raises:
        UsageError: the run trained no adapters of a published model.
    """
    saved, config = trained_weights(named, weights, storage)
    if config.lora is None or not isinstance(config.model, DiffusersConfig):
        raise UsageError(f"{saved.uri} has no adapters of a published model")
    bundle = Bundle(config.modules, meta=True, unread=True)
    for name, module in bundle.dit.named_modules():
        if ".lora_" in name:
            module.to_empty(device="cpu")
    saved.load_(bundle.trained_weights())
    state = saved.state
    return Trained(saved.uri, config, bundle, state.step, saved.group, base=state.base)


def sampled_fps(state: CheckpointState) -> float | None:
    """Return the frames per second that a run sampled clips at; None: at whatever rates they have, or unknown."""
    plans = state.plans or {}
    if plans.get("curriculum") is not None:
        return None  # its stages may have rates of their own
    fps = plans.get("buckets", {}).get("sampling", {}).get("fps")
    return None if fps is None else float(fps)


def trained_weights(
    named: str,
    weights: Group | None,
    storage: StorageConfig,
    world: World | None = None,
    encoders: bool = True,
) -> tuple[Weights, TrainConfig]:
    """Return weights of a checkpoint and the configuration of its run; errors as in `load_trained`.

    Adapters are checked to be on the base weights that they were trained on. Frozen parts that are others are
    named in a warning.

    Args:
        named: folder or prefix, as in `load_trained`.
        weights: group of weights; None: the EMA if there is one.
        storage: configuration of the storage.
        world: ranks, as in `load_trained`.
        encoders: False leaves VAE and text encoders uncompared.
    """
    saved = weights_of(named, weights, storage)
    config = run_config(saved)
    lora = keep_base(config.lora, saved.state.base)
    if lora is not None:
        lora = lora.model_copy(update={"start_from": None})  # what was trained since is in the checkpoint
    config = config.model_copy(update={"lora": lora})

    def compare() -> None:
        check_base(saved.uri, saved.state.base, base_weights(config.modules))
        check_parts(saved.uri, saved.state.frozen, frozen_parts(config.modules, encoders), "accept")

    on_first(world or ALONE, compare)  # which reads the files for all, and says once what differs
    return saved, config


def run_config(saved: Weights) -> TrainConfig:
    """Return the configuration of a checkpoint's run.

    Raises:
        UsageError: it describes what this version does not know.
    """
    try:
        return TrainConfig.model_validate(saved.state.config)
    except ValidationError as error:
        raise UsageError(
            f"{saved.uri} describes a model that this version does not know: {first_line(error)}"
        ) from error


class Adapters(NamedTuple):
    """LoRA adapters as a file stores them.

    Attributes:
        config: their rank, scale and layers.
        weights: their matrices by name, as in `load_adapters`.
        base: weights that they were trained on; None: the file does not say.
        note: what the file leaves open and convention decides; empty: nothing.
    """

    config: LoraConfig
    weights: dict[str, torch.Tensor]
    base: BaseWeights | None
    note: str


def load_published(
    config: TrainConfig, device: torch.device, lora: Path | None = None, world: World | None = None
) -> Trained:
    """Load the published model that a training configuration names, before any training.

    Args:
        config: the configuration.
        device: target device.
        lora: adapters, the folder or file that `reelweave export` or diffusers wrote; None: the model alone.
        world: ranks that load it together, as in `load_trained`.

    Raises:
        UsageError: the configuration names no published model, or the adapters are not of it. Or its objective
            predicts another quantity than the model.
    """
    name, config, weights = find_published(config, lora, world)
    bundle = Bundle(config.modules)
    for line in compare_with_published(config.modules, bundle.dit, new=lora is None):
        if (world or ALONE).rank == 0:
            _log.warning("%s", line)
    if weights is not None:
        load_adapters(bundle.dit, weights)
    return Trained(name, config, bundle.to(device).eval(), 0, "model")


def find_published(
    config: TrainConfig, lora: Path | None, world: World | None = None
) -> tuple[str, TrainConfig, dict[str, torch.Tensor] | None]:
    """Return name, configuration and adapters of a published model; arguments and errors as in `load_published`."""
    if not isinstance(config.model, DiffusersConfig):
        raise UsageError(
            "the configuration describes a model of ours, whose weights come from training: sample a --checkpoint"
        )
    if lora is None:
        return _named(config.model), config.model_copy(update={"lora": None}), None
    name, adapters = _named(config.model), read_adapters(lora, config.model)
    config = config.model_copy(update={"lora": adapters.config})
    compare_base(lora, adapters, config.modules, world)
    return f"{name} + {lora}", config, adapters.weights


def _named(model: DiffusersConfig) -> str:
    """Return the name of a published model, and the file of its weights where that is another."""
    return model.name if model.weights is None else f"{model.name} ({model.weights})"


def compare_base(path: Path, adapters: Adapters, modules: ModulesConfig, world: World | None) -> None:
    """Warn of what a file of adapters leaves open, and of other base weights than theirs; a collective.

    Args:
        path: the file.
        adapters: its adapters.
        modules: the model that they are given for, with adapters.
        world: ranks, as in `load_trained`.
    """
    base = adapters.base
    if base is None and not adapters.note:
        return

    def compare() -> None:
        if adapters.note:
            _log.warning("%s", adapters.note)
        now = None if base is None else base_weights(modules)
        if said := other_base(f"--lora {path}", base, now):
            _log.warning("%s", said)

    on_first(world or ALONE, compare)


def read_adapters(path: Path, model: DiffusersConfig) -> Adapters:
    """Read adapters of any tool and their settings.

    Args:
        path: folder or file.
        model: transformer that they are for.

    Raises:
        UsageError: the file holds no adapters of its layers, or says that they are of another transformer.
    """
    names, layers = published_layers(model)
    file, read = adapters_file(path), read_adapters_file(path, layers, names, "--lora")
    base = stated_base(
        read.metadata,
        model.subfolder,
        f"--lora {file}",
        "of two experts, --lora is for the one that model.subfolder names, and --lora-2 for the other",
    )
    return Adapters(
        LoraConfig(rank=read.rank, alpha=read.alpha, targets=read.targets), read.weights, base, read.note
    )
