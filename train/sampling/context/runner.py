"""Model whose tokens are shared by ranks of a ring, of Ulysses or of both (Patel et al. 2025, section 5).

Latents are cut by tokens, attention spans all of them (`reelweave.train.parallel.context`), and predictions
are gathered.
"""

import math
from dataclasses import dataclass

import torch

from reelweave.train.models.attention.patches import join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.token_shard import check_heads, cuttable, part_of
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.step.squared_errors import DenoisingInputs


@dataclass(frozen=True, eq=False)
class ContextParallelModel:
    """`reelweave.train.sampling.prediction.predictor.ModelRunner` over ranks that share the tokens of each video.

    Parts differ by one token at most (by one place in an ST-DiT), and nothing is padded. Each pass adds one gather of
    the prediction to the exchanges within attention.

    Attributes:
        dit: the model.
        ranks: ranks that share the tokens.

    Raises:
        UsageError: the ranks of Ulysses do not divide the model's heads; with fewer tokens than ranks, the call fails.
    """

    dit: Denoiser
    ranks: ContextParallel

    def __post_init__(self) -> None:
        check_heads(cuttable(self.dit), self.ranks.near)

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W]; as in `reelweave.train.sampling.prediction.predictor.ModelRunner`."""
        model = cuttable(self.dit)
        grid = model.grid(x_BCTHW.shape[2:])
        inputs = DenoisingInputs([x_BCTHW], [], timestep_input_B, *conditions, packed=False)
        part = part_of(model, inputs, self.ranks, window)
        values_BLV = part.gather(part.denoise(model, [x_BCTHW]), self.ranks)
        return join(values_BLV.reshape(len(x_BCTHW), *grid, -1, math.prod(model.patch)), model.patch)
