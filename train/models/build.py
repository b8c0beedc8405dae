"""Construction of models from their configuration, with or without weights."""

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig, PatchTransformConfig
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT
from reelweave.train.models.encoders.tokenizer import PatchTransform, Tokenizer
from reelweave.train.models.mmdit import MMDiT
from reelweave.train.models.published.families.registry import TRANSFORMERS
from reelweave.train.models.published.folder import description, part_folder
from reelweave.train.models.published.formats.layers import Layers, layers_of
from reelweave.train.models.published.names.native import NativeNames
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.vae import DiffusersVAE
from reelweave.train.models.published.weights import PublishedModel
from reelweave.train.models.st_dit import STDiT
from reelweave.train.objectives.first_frames import first_frame_channels


def build_tokenizer(config: PatchTransformConfig | DiffusersVAEConfig, unread: bool = False) -> Tokenizer:
    """Build a tokenizer; with ``unread`` a published one is left on the meta device, without its weights."""
    if isinstance(config, PatchTransformConfig):
        return PatchTransform(config)
    return DiffusersVAE(config, unread)


def build_denoiser(
    config: ModelConfig | DiffusersConfig,
    channels: int,
    text_width: int,
    first_frames: FirstFramesConfig | None = None,
    unread: bool = False,
) -> Denoiser:
    """Build a model; under ``torch.device("meta")`` without weights.

    Args:
        config: architecture.
        channels: channels of the latents.
        text_width: width of the text context.
        first_frames: first frames that the model is given; None: none.
        unread: fetch no weights of a published model, which stays on the meta device.

    Raises:
        UsageError: a published model is missing, unsupported, or does not match latents, text or first frames.
    """
    if isinstance(config, DiffusersConfig):
        folder, family = _published_family(config, weights=not unread)
        return family(config, folder, channels, text_width, first_frames)
    kind = {"dit": DiT, "st_dit": STDiT, "mmdit": MMDiT}[config.kind]
    return kind(config, channels, text_width, first_frame_channels(channels) if first_frames else 0)


def published_layers(config: DiffusersConfig) -> tuple[NativeNames | None, Layers]:
    """Return the native names of a published model, if it has any, and its layers; reads no weights.

    Raises:
        UsageError: the model is missing or unsupported.
    """
    folder, family = _published_family(config)
    with torch.random.fork_rng(devices=[]):
        layers = layers_of(PublishedModel(config, folder, family.source).structure())
    return family.names_of(description(folder, "model.name")), layers


def _published_family(config: DiffusersConfig, weights: bool = True) -> tuple[Path, type[DiffusersDenoiser]]:
    fetched = weights and config.weights is None
    folder = part_folder(config.name, config.subfolder, "model.name", weights=fetched)
    class_name = description(folder, "model.name").get("_class_name")
    family = TRANSFORMERS.get(str(class_name))
    if family is None:
        raise UsageError(
            f"model.name={config.name!r} is a {class_name}; supported are {', '.join(TRANSFORMERS)}"
        )
    return folder, family


def initial_weights(model: nn.Module, drawn: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and initial value of each parameter on the CPU, with the same draws as construction there.

    One layer is in memory at a time, so that each rank can take its shard of a model that fits on none.

    Args:
        model: whole model on the meta device.
        drawn: CPU random state before construction (`torch.get_rng_state`).
    """
    for path, module in model.named_modules():
        if parameters := dict(module.named_parameters(path, recurse=False)):
            layer = copy.deepcopy(module).to_empty(device="cpu")
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(drawn)
                layer.reset_parameters()
                drawn = torch.get_rng_state()
            yield from zip(parameters, (parameter.detach() for parameter in layer.parameters()), strict=True)
