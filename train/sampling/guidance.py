"""Classifier-free guidance: several model passes per step, combined linearly, on one rank or on several.

Clean latents and noise are linear in predictions, so that guidance is the same for all objectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from loader.errors import UsageError
from train.distributed.world import World
from train.models.attention.positions import Window
from train.models.precision import at_least_float32
from train.parallel.context.exchange import gather
from train.parallel.context.partition import Partition
from train.sampling.predictor import Conditions, ModelRunner, SchedulePoint


def text_weights(guidance: float) -> tuple[float, ...]:
    """Return the weights of the passes with and without caption (Ho and Salimans 2022, eq. 6, w = guidance - 1).

    A scale of 1 needs the pass with the caption alone.
    """
    return (1.0,) if guidance == 1 else (guidance, 1 - guidance)


@dataclass(frozen=True, eq=False)
class Guided:
    """`train.sampling.predictor.Predictor` of a model under guidance.

    Passes run one after the other, so that a prediction does not depend on which rank ran which pass: one process
    and any number of ranks give the same bits.

    Attributes:
        run: model on its ranks.
        passes: conditions of each pass, the fully conditioned one first.
        weights: weight of each pass; they sum to 1.
        ranks: ranks that share the passes, in adjacent parts; some may have none. None: this rank runs all.
        batched: run a rank's passes as one batch; equal to rounding.
        rescale: share phi of the prediction that is rescaled (`rescaled`).
    """

    run: ModelRunner
    passes: Sequence[Conditions]
    weights: Sequence[float]
    ranks: World | None = None
    batched: bool = False
    rescale: float = 0.0

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        if self.rescale and window is not None:
            raise UsageError(
                "guidance rescale takes the spread of whole latents, and here they are divided: use rescale 0"
            )
        predictions = self.predictions(x_BCTHW, point, window)
        guided_BCTHW = combine(predictions, self.weights)
        return rescaled(guided_BCTHW, predictions[0], self.rescale) if self.rescale else guided_BCTHW

    def predictions(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> Sequence[torch.Tensor]:
        """Return the prediction of every pass, on every rank."""
        B, (first, last) = len(x_BCTHW), self._own
        scaled_BCTHW = point.level.scale * x_BCTHW
        own = [x_BCTHW[:0]]
        for batch in _batches(self.passes[first:last], self.batched):
            found = self.run(
                scaled_BCTHW.repeat(len(batch), 1, 1, 1, 1),
                point.level.timestep_input.expand(len(batch) * B),
                Conditions(*(torch.cat(parts) for parts in zip(*batch, strict=True))),
                window,
            )
            own.append(at_least_float32(found))
        together = torch.cat(own)
        if self._cut is not None and self.ranks is not None:
            group = self.ranks.group or dist.group.WORLD
            assert group is not None  # there are several ranks
            together = gather(together, [B * count for count in self._cut.lengths], group, dim=0)
        return torch.split(together, B)

    @cached_property
    def _cut(self) -> Partition | None:
        """Partition of the passes over the ranks; None: every rank runs them itself, as it does a single one."""
        if self.ranks is None or self.ranks.size == 1 or len(self.passes) == 1:
            return None
        return Partition.even(len(self.passes), self.ranks.size)

    @cached_property
    def _own(self) -> tuple[int, int]:
        """First pass of this rank, and the one behind its last."""
        if self._cut is None or self.ranks is None:
            return 0, len(self.passes)
        first = sum(self._cut.lengths[: self.ranks.rank])
        return first, first + self._cut.lengths[self.ranks.rank]


def combine(predictions: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted sum of predictions, as the last plus weighted differences to it."""
    *others, last = predictions
    total = last
    for prediction, weight in zip(others, weights, strict=False):
        total = total + weight * (prediction - last)
    return total


def rescaled(guided_BCTHW: torch.Tensor, conditioned_BCTHW: torch.Tensor, share: float) -> torch.Tensor:
    """Return a guided prediction, a share of it with the spread of the conditioned one.

    Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed", 2024, eq. 15 and 16; the standard
    deviation is each whole sample's.

    Args:
        guided_BCTHW: guided prediction.
        conditioned_BCTHW: prediction of the fully conditioned pass.
        share: share phi of the rescaled prediction, in [0, 1].
    """
    dims = list(range(1, guided_BCTHW.ndim))
    spread = guided_BCTHW.std(dims, keepdim=True)
    factor = conditioned_BCTHW.std(dims, keepdim=True) / spread
    # Equal predictions, as of a new model, have no spread to correct.
    factor = torch.where(spread > 0, factor, torch.ones_like(factor))
    return guided_BCTHW * (share * factor + (1 - share))


def _batches(passes: Sequence[Conditions], batched: bool) -> Sequence[Sequence[Conditions]]:
    if not batched:
        return [[one] for one in passes]
    return [passes] if passes else []
