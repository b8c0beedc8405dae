"""The parts of a run: the tokenizer, the text encoder, the denoiser and its objective."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from train.config import TrainConfig
from train.models.build import build_denoiser, initial_weights
from train.models.text import build_text_encoder
from train.models.tokenizer import PatchTransform
from train.objectives.build import build_objective


class Bundle(nn.Module):
    """What a configuration describes, with weights that depend on its seed alone.

    Args:
        config: of the run.
        meta: leave the denoiser on the meta device: to be sharded, then filled with `initial_weights`.

    Attributes:
        tokenizer: video to latents and back; nothing in it is trained.
        text: captions to context.
        dit: the denoiser, of any kind; it predicts what the objective asks.
        objective: what that is.
    """

    def __init__(self, config: TrainConfig, meta: bool = False) -> None:
        super().__init__()
        self.objective = build_objective(config.objective)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.tokenizer = PatchTransform(config.tokenizer)
            self.text = build_text_encoder(config.text)
            self._drawn = torch.get_rng_state()
            self._build = partial(build_denoiser, config.model, self.tokenizer.channels, self.text.width)
            with torch.device("meta") if meta else nullcontext():
                self.dit = self._build()

    def initial_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and initial value of each weight of the denoiser, whole, on the CPU, one layer after the other."""
        with torch.device("meta"):
            twin = self._build()
        return initial_weights(twin, self._drawn)

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name; a frozen text encoder has none."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}
