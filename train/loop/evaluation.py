"""Held-out loss at fixed quantiles of the timestep."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.config.parts import LossConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.breakdown import BINS, Breakdown, LossRows
from reelweave.train.models.bundle import Bundle
from reelweave.train.step.losses import losses
from reelweave.train.step.squared_errors import SquaredErrors, whole_model_errors


def never_due(section: str, every_steps: int, total_steps: int, before_first_step: bool = False) -> str:
    """Return a sentence if a run ends before something at intervals takes place; else nothing.

    Args:
        section: section of the configuration that holds the interval.
        every_steps: the interval.
        total_steps: optimizer steps of the run.
        before_first_step: whether it takes place before the first step.
    """
    if every_steps <= total_steps:
        return ""
    when = "it takes place before the first step alone" if before_first_step else "it never takes place"
    return f"{section}.every_steps={every_steps} is above schedule.total_steps={total_steps}: {when}"


@dataclass(frozen=True)
class HeldOutEvaluation:
    """Held-out clips with fixed noise, so that only the model changes between evaluations.

    Attributes:
        every_steps: optimizer steps between two evaluations.
        batches: returns this rank's batches from the first on, at each call; ranks may have unequal numbers.
        before_first_step: whether to evaluate the model as the run begins.
    """

    every_steps: int
    batches: Callable[[], Iterable[Microbatch | Pack]]
    before_first_step: bool = False

    @torch.no_grad()
    def losses(
        self,
        bundle: Bundle,
        config: LossConfig,
        world: World,
        run_dummy_steps: Callable[[int], None] | None = None,
        errors: SquaredErrors = whole_model_errors,
    ) -> Breakdown:
        """Return held-out losses, with captions, at the middle of each quantile of training times; a collective.

        Args:
            bundle: modules of the run.
            config: configuration of the loss.
            world: ranks with different batches.
            run_dummy_steps: called with the number of this rank's model runs beforehand, if ranks run in lockstep.
            errors: function that runs the model.
        """
        rows, batches = LossRows(), list(self.batches())
        if run_dummy_steps:
            run_dummy_steps(len(batches) * BINS)
        for batch in batches:
            for part in range(BINS):
                quantile = (part + 0.5) / BINS
                rows.add(batch, losses(bundle, config, batch, world.device, quantile, errors))
        return rows.take(world)
