"""Context-parallel denoiser: all operations but self-attention are local."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.precision.float32 import at_least_float32
from reelweave.train.models.transfer import send_one
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.token_shard import cuttable, part_of
from reelweave.train.step.squared_errors import DenoisingInputs


@dataclass(frozen=True, eq=False)
class ContextParallelErrors:
    """Squared errors (`reelweave.train.step.squared_errors.SquaredErrors`) of a model on local parts of sequences.

    Errors have the value of the whole sequence, the same on every rank, but the gradient of the local part.
    Gradients of replicated tensors are then summed over the ranks once (docs/parallel.md).

    Attributes:
        ranks: ranks that share the sequences.
    """

    ranks: ContextParallel

    def __call__(self, dit: Denoiser, inputs: DenoisingInputs) -> torch.Tensor:
        """Return each sample's mean squared error, at least float32 [B]."""
        model, part = cuttable(dit), part_of(dit, inputs, self.ranks)
        values = at_least_float32(part.denoise(model, inputs.inputs))
        squares = (values - part.of(model, inputs.targets)).square().sum(dim=2)
        if inputs.packed:
            part_B = torch.stack(
                [token_errors.sum() for token_errors in torch.split(squares[0], list(part.counts))]
            )
        else:
            part_B = squares.sum(dim=1)
        values_B = torch.tensor([target[0].numel() for target in inputs.targets])
        part_B = part_B / send_one(values_B, part_B.device)
        whole_B = part_B.detach().clone()
        for group in (self.ranks.ulysses, self.ranks.ring):
            dist.all_reduce(whole_B, group=group)
        return part_B + (whole_B - part_B.detach())
