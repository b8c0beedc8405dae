"""Pipeline step: microbatches through all stages and back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.config.parts import LayoutConfig
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import StepClock, StepPart
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.dummy_step import dummy_step
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.pipeline.order import turns
from reelweave.train.step.losses import Losses, losses
from reelweave.train.step.squared_errors import DenoisingInputs, SquaredErrors

Weigh = Callable[[Microbatch | Pack, Losses], torch.Tensor]
"""Function that adds a microbatch to the step and returns its weighted loss."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Model with blocks on several stages (`reelweave.train.parallel.pipeline`); each reads all microbatches.

    Number and shapes of microbatches are arbitrary, since a stage derives what it receives from its own copy.

    Attributes:
        bundle: modules of this stage.
        config: configuration of the layout.
        ranks: processes in their grid.
        errors: function that runs the model on this rank's tokens of a batch.
    """

    bundle: Bundle
    config: LayoutConfig
    ranks: Ranks
    errors: SquaredErrors

    def passes(
        self,
        batches: Sequence[Microbatch | Pack],
        weigh: Weigh,
        dummy_rounds: int,
        clock: StepClock,
        before_backward: Callable[[bool], None],
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Run a step forward and backward; yields each microbatch with its losses, the same on all stages.

        Args:
            batches: microbatches of the step.
            weigh: adds each microbatch to the step.
            dummy_rounds: number of dummy steps before them.
            clock: clock that times this rank's activities; waits for other stages count as forward and backward.
            before_backward: function called before each backward, with True for the last one.
        """
        neighbours, device = self.ranks.neighbours, self.ranks.world.device
        batch_losses: list[Losses] = []
        alive: dict[int, torch.Tensor] = {}

        def forward(index: int) -> torch.Tensor:
            if index < dummy_rounds:
                return dummy_step(self.bundle, self.config.dtype, self.ranks, self.errors)
            batch = batches[index - dummy_rounds]
            microbatch_losses = losses(
                self.bundle, self.config.losses, batch, device, None, self.errors, clock.part
            )
            batch_losses.append(replace(microbatch_losses, each=microbatch_losses.each.detach()))
            return weigh(batch, microbatch_losses) if neighbours.last else microbatch_losses.each.sum()

        rounds = dummy_rounds + len(batches)
        # Weights are cast once for all microbatches in flight, since casts live until the outermost context ends.
        with torch.autocast(device.type, enabled=False):
            for turn in turns(self.config.parallel.pp_schedule, neighbours.stage, neighbours.stages, rounds):
                part: StepPart = "forward" if turn.forward else "backward"
                with clock.part("sync" if turn.microbatch < dummy_rounds else part):
                    if turn.forward:
                        alive[turn.microbatch] = forward(turn.microbatch)
                    else:
                        before_backward(turn.microbatch == rounds - 1)
                        alive.pop(turn.microbatch).backward()  # type: ignore[no-untyped-call]  # torch's own
        with clock.part("sync"):
            neighbours.settle()
            last_losses = from_last(
                torch.cat([sample_losses.each for sample_losses in batch_losses]), self.ranks.along("pp")
            )
        for batch, microbatch_losses, each in zip(
            batches,
            batch_losses,
            torch.split(last_losses, [len(sample_losses.each) for sample_losses in batch_losses]),
            strict=True,
        ):
            microbatch_losses = replace(microbatch_losses, each=each)
            if not neighbours.last:
                weigh(batch, microbatch_losses)
            yield batch, microbatch_losses


@dataclass(frozen=True, eq=False)
class PipelineErrors:
    """Squared errors (`reelweave.train.step.squared_errors.SquaredErrors`) of a pipelined model, without gradients.

    Attributes:
        errors: function that runs the model on this rank's tokens of a batch.
        ranks: processes in their grid.
    """

    errors: SquaredErrors
    ranks: Ranks

    @torch.no_grad()
    def __call__(self, dit: Denoiser, inputs: DenoisingInputs) -> torch.Tensor:
        """Return each sample's mean squared error, the same on all stages, at least float32 [B]."""
        found_B = from_last(self.errors(dit, inputs), self.ranks.along("pp"))
        self.ranks.neighbours.settle()
        return found_B


def from_last(values: torch.Tensor, stages: World) -> torch.Tensor:
    """Return the values of the last stage on all stages; a collective."""
    summed = values if stages.rank == stages.size - 1 else torch.zeros_like(values)
    stages.sum_([summed])
    return summed
