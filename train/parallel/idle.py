"""A run of the model on nothing: for the collectives in it, where other ranks run it more often than this one."""

import torch

from train.config.run import TrainConfig
from train.models.bundle import Bundle
from train.parallel.mesh import CONTEXT, Ranks
from train.step.squared_errors import Question, SquaredErrors


def idle(bundle: Bundle, config: TrainConfig, ranks: Ranks, errors: SquaredErrors) -> torch.Tensor:
    """A zero that comes from a forward of one token; its backward adds nothing to any gradient."""
    device = ranks.world.device
    frames, rows, columns = bundle.dit.patch
    # A token for each rank that shares a sequence.
    size = (frames * ranks.mesh.degree(CONTEXT), rows, columns)
    latents = torch.zeros(1, bundle.tokenizer.channels, *size, device=device)
    # A row of text, and one for models that take the whole caption in a row of its own.
    context = torch.zeros(1, 2, bundle.text.width, device=device)
    mask = torch.ones(1, 2, dtype=torch.bool, device=device)
    asked = Question([latents], [latents], torch.zeros(1, device=device), context, mask, packed=False)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        return 0 * errors(bundle.dit, asked).sum()
