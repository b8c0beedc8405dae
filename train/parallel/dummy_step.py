"""Dummy forward that keeps FSDP and context-parallel collectives matched if ranks have unequal microbatches."""

import torch

from reelweave.train.config.parts import Dtype
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.step.squared_errors import DenoisingInputs, SquaredErrors


def dummy_step(bundle: Bundle, dtype: Dtype, ranks: Ranks, errors: SquaredErrors) -> torch.Tensor:
    """Return a zero that depends on a forward of one token per rank; its backward adds zero gradients."""
    bundle.text.join()
    device = ranks.world.device
    frames, rows, columns = bundle.dit.patch
    # One token per context-parallel rank.
    size = (frames * ranks.mesh.degree(CONTEXT), rows, columns)
    latents = torch.zeros(1, bundle.tokenizer.channels, *size, device=device)
    condition = torch.zeros(1, bundle.dit.condition_channels, *size, device=device)
    # One row of text, and one for a pooled caption.
    context = torch.zeros(1, 2, bundle.text.width, device=device)
    mask = torch.ones(1, 2, dtype=torch.bool, device=device)
    inputs = torch.cat([latents, condition], dim=1)
    dit_inputs = DenoisingInputs(
        [inputs], [latents], torch.zeros(1, device=device), context, mask, packed=False
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        return 0 * errors(bundle.dit, dit_inputs).sum()
