"""Classifier-free guidance: several model passes per step, combined linearly, on one rank or on several.

Clean latents and noise are linear in predictions, so that guidance is the same for all objectives.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.precision.float32 import at_least_float32
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.sampling.cache.block_cache import BlockCache
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, SchedulePoint


def text_weights(guidance: float) -> tuple[float, ...]:
    """Return the weights of the passes with and without caption (Ho and Salimans 2022, eq. 6, w = guidance - 1)."""
    return guidance, 1 - guidance


def pass_weights(
    guidance: float, guidance_2: float | None, image_guidance: float | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the weights of the same passes for much noise and for little, which differ for two experts.

    Scales of 1 need the pass with the caption alone.

    Args:
        guidance: scale of the caption.
        guidance_2: scale of the caption for little noise; None: the same.
        image_guidance: scale of given first frames; None: they are in all passes.
    """
    high, low = guidance, guidance if guidance_2 is None else guidance_2
    if image_guidance is not None:
        return image_weights(high, image_guidance), image_weights(low, image_guidance)
    if high == low == 1:
        return (1.0,), (1.0,)
    return text_weights(high), text_weights(low)


def image_weights(guidance: float, image_guidance: float) -> tuple[float, ...]:
    """Return the weights of the passes with caption and image, with the image alone, and with neither.

    Brooks et al., "InstructPix2Pix", 2023, eq. 3.
    """
    return guidance, image_guidance - guidance, 1 - image_guidance


@dataclass(frozen=True, eq=False)
class Guided:
    """`reelweave.train.sampling.prediction.predictor.Predictor` of a model under guidance.

    Passes run one after the other, so a prediction does not depend on which rank ran which pass. One process
    and any number of ranks give the same bits.

    Attributes:
        run: model on its ranks.
        passes: conditions of each pass, the fully conditioned one first.
        weights: weight of each pass; they sum to 1.
        ranks: ranks that share the passes, in adjacent parts; some may have none. None: this rank runs all.
        batched: run a rank's passes as one batch; equal to rounding.
        rescale: share phi of the prediction that is rescaled (`rescale_guided`).
        channels: condition channels of each pass behind the latents
            (`reelweave.train.objectives.first_frames`), [B, K, T, H, W] each; None: the model has none.
        cache: cache of the model's blocks, with a state for each batch of passes; approximate. None: none.
    """

    run: ModelRunner
    passes: Sequence[Conditions]
    weights: Sequence[float]
    ranks: World | None = None
    batched: bool = False
    rescale: float = 0.0
    channels: Sequence[torch.Tensor] | None = None
    cache: BlockCache | None = None

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        if self.rescale and window is not None:
            raise UsageError(
                "guidance rescale takes the spread of whole latents, and here they are divided: use rescale 0"
            )
        predictions = self.predictions(x_BCTHW, point, window)
        guided_BCTHW = combine(predictions, self.weights)
        return rescale_guided(guided_BCTHW, predictions[0], self.rescale) if self.rescale else guided_BCTHW

    def predictions(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> Sequence[torch.Tensor]:
        """Return the prediction of every pass, on every rank."""
        B = len(x_BCTHW)
        scaled_BCTHW = point.level.scale * x_BCTHW
        local_predictions = [x_BCTHW[:0]]
        for batch in _batches(range(*self._own), self.batched):
            passes = [self.passes[index] for index in batch]
            with self.cache.evaluation(batch[0]) if self.cache is not None else nullcontext():
                prediction = self.run(
                    torch.cat([self._with_channels(scaled_BCTHW, index, window) for index in batch]),
                    point.level.timestep_input.expand(len(batch) * B),
                    Conditions(*(torch.cat(parts) for parts in zip(*passes, strict=True))),
                    window,
                )
            local_predictions.append(at_least_float32(prediction))
        together = torch.cat(local_predictions)
        if self._cut is not None and self.ranks is not None:
            group = self.ranks.group or dist.group.WORLD
            assert group is not None  # there are several ranks
            together = gather(together, [B * count for count in self._cut.lengths], group, dim=0)
        return torch.split(together, B)

    def _with_channels(self, x_BCTHW: torch.Tensor, index: int, window: Window | None) -> torch.Tensor:
        """Return the inputs of a pass: latents and its condition channels."""
        if self.channels is None:
            return x_BCTHW
        own_BKTHW = self.channels[index]
        if window is not None:
            for dim, (start, size) in enumerate(zip(window.start, x_BCTHW.shape[2:], strict=True), start=2):
                own_BKTHW = own_BKTHW.narrow(dim, start, size)
        return torch.cat([x_BCTHW, own_BKTHW], dim=1)

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
    *leading, last = predictions
    total = last
    for prediction, weight in zip(leading, weights, strict=False):
        total = total + weight * (prediction - last)
    return total


def rescale_guided(guided_BCTHW: torch.Tensor, conditioned_BCTHW: torch.Tensor, share: float) -> torch.Tensor:
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


def _batches(passes: range, batched: bool) -> Sequence[range]:
    if not batched:
        return [range(index, index + 1) for index in passes]
    return [passes] if passes else []
