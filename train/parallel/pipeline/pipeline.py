"""Pipeline step: microbatches through all stages and back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.config.run import TrainConfig
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
        config: configuration of the run.
        ranks: processes in their grid.
        errors: function that runs the model on this rank's tokens of a batch.
    """

    bundle: Bundle
    config: TrainConfig
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
        found: list[Losses] = []
        alive: dict[int, torch.Tensor] = {}

        def forward(number: int) -> torch.Tensor:
            if number < dummy_rounds:
                return dummy_step(self.bundle, self.config, self.ranks, self.errors)
            batch = batches[number - dummy_rounds]
            own = losses(self.bundle, self.config, batch, device, None, self.errors, clock.part)
            found.append(replace(own, each=own.each.detach()))
            return weigh(batch, own) if neighbours.last else own.each.sum()

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
            told = from_last(torch.cat([one.each for one in found]), self.ranks.along("pp"))
        for batch, own, each in zip(
            batches, found, torch.split(told, [len(one.each) for one in found]), strict=True
        ):
            own = replace(own, each=each)
            if not neighbours.last:
                weigh(batch, own)
            yield batch, own


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
    def __call__(self, dit: Denoiser, asked: DenoisingInputs) -> torch.Tensor:
        """Return each sample's mean squared error, the same on all stages, at least float32 [B]."""
        found_B = from_last(self.errors(dit, asked), self.ranks.along("pp"))
        self.ranks.neighbours.settle()
        return found_B


def from_last(values: torch.Tensor, stages: World) -> torch.Tensor:
    """Return the values of the last stage on all stages; a collective."""
    told = values if stages.rank == stages.size - 1 else torch.zeros_like(values)
    stages.sum_([told])
    return told
