"""The interface between the training loop and what it trains."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.checkpoint.pieces import Tensors
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.measure.timings import StepClock
from reelweave.train.step.step_losses import StepLosses


class TrainingTask(Protocol):
    """Models in training, their optimizers and their evaluation: `DenoiserTask` and `VaeTask`.

    A step calls `begin`, `forward_backward`, `sum_gradients`, `norms`, `terms`, `clip`, then `update` unless the
    gradients are not finite, and `after_step`, in this order on every rank. Only `after_step` waits for the device.
    """

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """Return the trained tensors by name; after `sum_gradients` with the gradients of the whole step."""

    @property
    def data(self) -> World:
        """Return the ranks that have different samples."""

    @property
    def description(self) -> str:
        """Return what is trained, such as "1,234 weights"."""

    def state(self) -> Mapping[str, Tensors]:
        """Return the tensors of a checkpoint by group and name; a resume writes into them in place."""

    def start(self, done: int, log: RunLog) -> None:
        """Prepare for the first step, once a checkpoint was restored; a collective.

        Args:
            done: Steps done before.
            log: log to report to.
        """

    def begin(self, step: int) -> float:
        """Clear the gradients and return the learning rate of a step, counted from 1."""

    def forward_backward(
        self, batches: Iterable[Microbatch | Pack], step: int, losses: StepLosses, clock: StepClock
    ) -> Iterator[Microbatch | Pack]:
        """Add the gradients and losses of a step's microbatches; yield those that this rank reports.

        Args:
            batches: Microbatches that this rank reads.
            step: Number of the step, counted from 1.
            losses: Receives the loss of each microbatch and weighs its gradient.
            clock: Measures the parts of the step.
        """

    def updated_weights(self) -> Iterable[nn.Parameter]:
        """Return the weights of all networks that a step updates."""

    def sum_gradients(self) -> None:
        """Sum gradients, and what else is summed over samples, over the ranks."""

    def norms(self) -> Sequence[torch.Tensor]:
        """Return the norms of the gradients, scalars on the device, the one to report first."""

    def clip(self, norms: Sequence[torch.Tensor]) -> None:
        """Limit the norms of the gradients, which are these now."""

    def update(self, step: int) -> None:
        """Make the optimizer's step and update the averages."""

    def terms(self) -> Mapping[str, torch.Tensor] | None:
        """Return the step's loss by term, scalars on the device; None where it has one term only."""

    def after_step(self, step: int, log: RunLog) -> None:
        """Evaluate and report behind a step, as often as configured; a collective."""
