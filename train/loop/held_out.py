"""The loss of clips that are not trained on, at fixed quantiles of the time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from loader.batch import Microbatch, Pack
from train.config.run import TrainConfig
from train.distributed.world import World
from train.logs.breakdown import BINS, Breakdown, LossRows
from train.models.bundle import Bundle
from train.step.losses import losses
from train.step.squared_errors import SquaredErrors, of_whole


@dataclass(frozen=True)
class HeldOut:
    """Clips to look at now and then: the same with the same noise each time, so that only the model changes.

    Attributes:
        every_steps: optimizer steps between two looks.
        batches: this rank's batches of them, from the first on, at each call; other ranks may have more or fewer.
    """

    every_steps: int
    batches: Callable[[], Iterable[Microbatch | Pack]]

    @torch.no_grad()
    def losses(
        self,
        bundle: Bundle,
        config: TrainConfig,
        world: World,
        keep_up: Callable[[int], None] | None = None,
        errors: SquaredErrors = of_whole,
    ) -> Breakdown:
        """Their losses, with captions, at the middle of each part of the times that training draws; a collective.

        Args:
            bundle: the model.
            config: of the run.
            world: the ranks that have batches of their own.
            keep_up: told beforehand how often this rank will run the model, where ranks run in lockstep.
            errors: runs the model.
        """
        rows, batches = LossRows(), list(self.batches())
        if keep_up:
            keep_up(len(batches) * BINS)
        for batch in batches:
            for part in range(BINS):
                quantile = (part + 0.5) / BINS
                rows.add(batch, losses(bundle, config, batch, world.device, quantile, errors))
        return rows.take(world)
