"""From a configuration to its model, with weights or without."""

import copy
from collections.abc import Iterator

import torch
from torch import nn

from train.models.config import DiTConfig, ModelConfig, STDiTConfig
from train.models.denoiser import Denoiser
from train.models.dit import DiT
from train.models.mmdit import MMDiT
from train.models.st_dit import STDiT


def build_denoiser(config: ModelConfig, channels: int, text_width: int) -> Denoiser:
    """The model a configuration describes; under ``torch.device("meta")`` without weights.

    Args:
        config: the architecture.
        channels: channels of the latents.
        text_width: width of the text context.
    """
    if isinstance(config, DiTConfig):
        return DiT(config, channels, text_width)
    if isinstance(config, STDiTConfig):
        return STDiT(config, channels, text_width)
    return MMDiT(config, channels, text_width)


def initial_weights(model: nn.Module, drawn: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and initial value of each parameter, on the CPU, drawn as the model's construction there draws them.

    One layer is held at a time: each rank can take its part of a model that fits on none.

    Args:
        model: on the meta device, whole.
        drawn: state of the CPU's random numbers from which they are drawn (`torch.get_rng_state`).
    """
    for path, module in model.named_modules():
        if own := dict(module.named_parameters(path, recurse=False)):
            layer = copy.deepcopy(module).to_empty(device="cpu")
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(drawn)
                layer.reset_parameters()
                drawn = torch.get_rng_state()
            yield from zip(own, (parameter.detach() for parameter in layer.parameters()), strict=True)
