"""The parts of a run: the tokenizer, the text encoder, the denoiser and its objective."""

import torch
from torch import nn

from train.config import TrainConfig
from train.models.dit import DiT
from train.models.text import build_text_encoder
from train.models.tokenizer import PatchTransform
from train.objectives.build import build_objective


class Bundle(nn.Module):
    """What a configuration describes, with weights that depend on its seed alone.

    Attributes:
        tokenizer: video to latents and back; nothing in it is trained.
        text: captions to context.
        dit: predicts what the objective asks.
        objective: what that is.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.objective = build_objective(config.objective)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.tokenizer = PatchTransform(config.tokenizer)
            self.text = build_text_encoder(config.text)
            self.dit = DiT(config.model, self.tokenizer.channels, self.text.width)

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name; a frozen text encoder has none."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}
