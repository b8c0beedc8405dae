"""Weights, gradients and optimizer state on every rank; gradients are summed once a step."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from loader.batch import Microbatch, Pack
from train.config.run import TrainConfig
from train.measure.timings import StepClock
from train.models.bundle import Bundle
from train.parallel.context.denoise import OfParts
from train.parallel.dit import summed_over_tensor_ranks
from train.parallel.idle import idle
from train.parallel.layouts import pieces
from train.parallel.mesh import CONTEXT, SUMMED, Ranks
from train.parallel.pipeline.pipeline import OfStages, Pipeline, Weigh
from train.step.losses import Losses, losses
from train.step.optimizer import build_optimizer, state_tensors
from train.step.squared_errors import SquaredErrors, of_whole


class StepExecutor(Protocol):
    """Another way to run the microbatches of a step: `train.cascade.training.cascades.Cascades`."""

    def passes(
        self, batches: Iterable[Microbatch | Pack], weigh: Weigh, clock: StepClock
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Run a step forward and backward; arguments and result as of `Replicated.passes`."""

    def sum_(self, gradients: Sequence[torch.Tensor]) -> None:
        """Replace what the step left on each rank by the gradients of all its samples."""


class Replicated:
    """How what is trained lies on the ranks: whole on each, or divided by tensor and pipeline parallelism alone.

    Gradients are sums over the samples of all ranks: a microbatch's loss is weighed by its share of the step.

    Args:
        bundle: the modules, in their final layout.
        config: the run.
        ranks: the processes.
        wholes: the tensors that the pieces here belong to, where they are not the parameters.

    Attributes:
        weights: by name what the optimizer updates here: plain tensors; after `sum_gradients` with their gradients.
        optimizer: of them.
        errors: runs the model on this rank's part of a batch's tokens; without gradients where there are stages.
        count: of the values that are trained, on all ranks.
        executor: runs the microbatches of each step where it is set, in place of one after the other.
    """

    def __init__(
        self,
        bundle: Bundle,
        config: TrainConfig,
        ranks: Ranks,
        wholes: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self.bundle = bundle
        self.ranks = ranks
        self._config = config
        cut, staged = ranks.mesh.degree(CONTEXT) > 1, ranks.mesh.pp > 1
        errors: SquaredErrors = OfParts(ranks.context) if cut else of_whole
        self._pipeline = Pipeline(bundle, config, ranks, errors) if staged else None
        self.errors = OfStages(errors, ranks) if staged else errors
        self._wholes = dict(wholes or bundle.trained())
        self.weights = {name: pieces.local(whole) for name, whole in self._wholes.items()}
        self.optimizer = build_optimizer(config.optimizer, self.weights)
        for name, whole in self._wholes.items():
            if isinstance(whole, DTensor):
                whole.grad = pieces.placed(self._gradient(name), whole)
        own = "\n".join(f"{name} {whole.numel()}" for name, whole in self._wholes.items())
        held = [line.split() for said in ranks.along("pp").gather_text(own) for line in said.splitlines()]
        self._holders = Counter(name for name, _ in held)
        self.count = sum(int(values) for values in dict(held).values())
        self.executor: StepExecutor | None = None

    def share(self) -> None:
        """Makes all ranks start from the same weights, and from those that were put into `placed` ones."""
        self.ranks.along(*SUMMED).broadcast_(list(self.weights.values()))

    def zero_gradients(self) -> None:
        """Begins a step."""
        self.optimizer.zero_grad(set_to_none=False)

    def passes(
        self,
        batches: Iterable[Microbatch | Pack],
        weigh: Weigh,
        clock: StepClock,
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Runs the microbatches of a step forward and backward; each with its losses, in order.

        Under a plan of cascades these are the microbatches that this rank reports, whoever has read and run them.

        Args:
            batches: this rank's, as they come.
            weigh: what each of them adds to the step.
            clock: is told what this rank is at; keeps what each of them took, where they run one after the other.
        """
        if self._pipeline is not None:
            batches = list(batches)
            with clock.part("sync"):
                idle_rounds = self.lacking(len(batches))
            yield from self._pipeline.passes(batches, weigh, idle_rounds, clock)
            return
        if self.executor is not None:
            yield from self.executor.passes(batches, weigh, clock)
            return
        device = self.ranks.world.device
        for batch in batches:
            if batch.slot == 0:
                with clock.part("sync"):
                    self.keep_up(batch.slots)
            with clock.microbatch(batch):
                found = losses(self.bundle, self._config, batch, device, None, self.errors, clock.part)
                loss = weigh(batch, found)
                with clock.part("backward"):
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            yield batch, found

    def lacking(self, _rounds: int) -> int:
        """How often the model must run on nothing where this rank has use for so many rounds of it; a collective."""
        return 0

    def keep_up(self, rounds: int) -> None:
        """Comes before this rank runs the model so often: runs it on nothing as often as other ranks need it to."""
        for _ in range(self.lacking(rounds)):
            zero = idle(self.bundle, self._config, self.ranks, self.errors)
            if zero.requires_grad:
                zero.backward()  # type: ignore[no-untyped-call]  # torch's own

    def sum_gradients(self) -> None:
        """Sums gradients over the ranks, once all microbatches are through."""
        everywhere = self.executor or self.ranks.along(*SUMMED)
        everywhere.sum_([weight.grad for weight in self.weights.values() if weight.grad is not None])
        self._sum_over_model_ranks()

    def clip(self, largest: float) -> float:
        """Scales gradients so that their norm is at most this; the norm before, of the whole, the same on all ranks."""
        stages = self.ranks.mesh.pp
        divided = stages > 1 or any(pieces.parts(whole) > 1 for whole in self._wholes.values())
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        if divided:
            world = self.ranks.world
            found = pieces.norm(
                (
                    (self._gradient(name), world.size * self._holders[name] // stages // pieces.parts(whole))
                    for name, whole in self._wholes.items()
                ),
                world,
            )
        else:
            found = torch.nn.utils.get_total_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_(self.weights.values(), largest, found)
        return found.item()

    def update(self) -> None:
        """Makes the optimizer's step."""
        self.optimizer.step()

    def placed(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors that lie like the weights, by their names: plain where they are whole here, else DTensors, in place.

        What is written into the weights through them counts behind the next `share`.
        """
        return {name: pieces.placed(tensor, self._wholes[name]) for name, tensor in tensors.items()}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """The optimizer's state, named WEIGHT.NAME, as of `placed`."""
        return {
            name: pieces.placed(tensor, self._wholes[key]) if tensor.ndim else tensor
            for key, weight in self.weights.items()
            for name, tensor in state_tensors(self.optimizer, {key: weight}).items()
        }

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self.weights[name].grad
        assert gradient is not None, f"{name} has no gradient"
        return gradient

    def _sum_over_model_ranks(self) -> None:
        """Sums what ranks with the same samples have parts of."""
        tensor, stages = self.ranks.along("tp"), self.ranks.along("pp")
        if tensor.size > 1:
            tensor.sum_([self._gradient(name) for name in self.weights if summed_over_tensor_ranks(name)])
        if stages.size > 1:
            stages.sum_([self._gradient(name) for name in self.weights if self._holders[name] > 1])
