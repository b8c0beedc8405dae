"""Model runners on the ranks of a training run, in any of its layouts (docs/sample-parallel.md)."""

from dataclasses import dataclass

import torch
from torch.distributed.fsdp import FSDPModule

from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.precision.float32 import at_least_float32
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.pipeline.pipeline import from_last
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.sampling.context.runner import ContextParallelModel
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, WholeModel


def training_runner(dit: Denoiser, ranks: Ranks) -> ModelRunner:
    """Return the runner of a model that a run has laid out (`reelweave.train.parallel.layout.lay_out`).

    Ranks along the model dimensions (`reelweave.train.parallel.mesh.MODEL`) call it together, with equal
    arguments. Ranks along the data dimensions may sample different videos. Under FSDP they call it equally
    often: each call gathers weights.

    Args:
        dit: the model on this rank.
        ranks: ranks of the run.
    """
    runner: ModelRunner = WholeModel(dit)
    if ranks.mesh.degree(CONTEXT) > 1:
        runner = ContextParallelModel(dit, ranks.context)
    if isinstance(dit, FSDPModule):
        runner = ReshardedModel(runner, dit)
    return StagedModel(runner, ranks) if ranks.mesh.pp > 1 else runner


@dataclass(frozen=True, eq=False)
class ReshardedModel:
    """`ModelRunner` that leaves no weights gathered by FSDP behind.

    FSDP keeps the weights of the outermost module after a forward, for the backward that should follow. Without one,
    they would hide later changes of the shards, such as averaged weights for sampling and their end.

    Attributes:
        inner: runner of the model.
        dit: the model.
    """

    inner: ModelRunner
    dit: FSDPModule

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W]; as in `reelweave.train.sampling.prediction.predictor.ModelRunner`."""
        try:
            return self.inner(x_BCTHW, timestep_input_B, conditions, window)
        finally:
            self.dit.reshard()


@dataclass(frozen=True, eq=False)
class StagedModel:
    """`ModelRunner` of a pipelined model: tokens pass the stages, and the last one's prediction reaches all of them.

    Stages wait for each other in a pass, so that a pipeline samples no faster than one of its ranks.

    Attributes:
        inner: runner of this rank's stage; its result counts on the last stage alone.
        ranks: ranks of the run.
    """

    inner: ModelRunner
    ranks: Ranks

    @torch.no_grad()
    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, at least float32 [B, C, T, H, W]; as in `ModelRunner`."""
        own_BCTHW = at_least_float32(self.inner(x_BCTHW, timestep_input_B, conditions, window))
        prediction_BCTHW = from_last(own_BCTHW, self.ranks.along("pp"))
        self.ranks.neighbours.settle()
        return prediction_BCTHW
