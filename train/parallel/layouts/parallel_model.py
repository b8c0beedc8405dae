"""Base of all layouts of weights, gradients and optimizer state on ranks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.config.parts import LayoutConfig
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.st_dit import STDiT
from reelweave.train.models.transfer import Pace
from reelweave.train.parallel.context.denoise import ContextParallelErrors
from reelweave.train.parallel.dit import summed_over_tensor_ranks
from reelweave.train.parallel.dummy_step import dummy_step
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.layouts.gradient_buckets import GradientBuckets
from reelweave.train.parallel.mesh import SUMMED, Ranks
from reelweave.train.parallel.pipeline.pipeline import Pipeline, PipelineErrors, Weigh
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.step.losses import Losses, losses
from reelweave.train.step.optimizer import build_optimizer, state_tensors
from reelweave.train.step.squared_errors import SquaredErrors, whole_model_errors
from reelweave.train.step.weight_decay import decayed_weights


class StepExecutor(Protocol):
    """Alternative executor of a step's microbatches: `reelweave.train.cascade.training.cascades.Cascades`."""

    def passes(
        self, batches: Iterable[Microbatch | Pack], weigh: Weigh, clock: StepClock
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Run a step forward and backward; arguments and result as in `ParallelModel.passes`."""

    def sum_(self, gradients: Sequence[torch.Tensor]) -> None:
        """Replace each rank's gradients by those of all samples of the step."""


class ParallelModel:
    """Model on the ranks of a run: its weights, gradients, optimizer and steps; base of `DDP`, `FSDP` and `ZeRO1`.

    Gradients are sums over samples of all ranks, since a microbatch's loss is weighted by its share of the
    step.

    Args:
        bundle: modules in their final layout.
        config: configuration of the layout.
        ranks: processes in their grid.
        wholes: tensors that the local shards belong to, if these are not the parameters.

    Attributes:
        weights: plain local tensors that the optimizer updates, by name; with gradients after `sum_gradients`.
        optimizer: optimizer of ``weights``.
        errors: function that runs the model on this rank's tokens of a batch; without gradients under pipeline
            parallelism.
        count: number of trained values on all ranks.
        dtype: dtype of activations.
        executor: executor of each step's microbatches; None: run them one after the other.
    """

    def __init__(
        self,
        bundle: Bundle,
        config: LayoutConfig,
        ranks: Ranks,
        wholes: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self.bundle = bundle
        self.ranks = ranks
        self.dtype = config.dtype
        self._config = config
        # How errors are computed where sequences or blocks are cut over ranks.
        cut, staged = ranks.mesh.degree(CONTEXT) > 1, ranks.mesh.pp > 1
        errors: SquaredErrors = ContextParallelErrors(ranks.context) if cut else whole_model_errors
        if cut and isinstance(bundle.dit, STDiT):
            ranks.groups.exchange_in(ranks.context.group)  # whole tokens, once a layer each way
        self._pipeline = Pipeline(bundle, config, ranks, errors) if staged else None
        self.errors = PipelineErrors(errors, ranks) if staged else errors
        # Trained weights as this rank holds them, their optimizer, and the sums of their gradients.
        self._wholes = dict(wholes or bundle.trained_weights())
        self.weights = {name: pieces.local(parameter) for name, parameter in self._wholes.items()}
        self.optimizer = build_optimizer(config.optimizer, self.weights, decayed_weights(bundle))
        replicated = {name: self.weights[name] for name in self._summed_whole()}
        self._buckets = GradientBuckets(replicated, self._wholes, ranks.along(*SUMMED))
        for name, parameter in self._wholes.items():
            if isinstance(parameter, DTensor):
                parameter.grad = pieces.place_piece(self._gradient(name), parameter)
        # Groups are made here: in a step all ranks would wait for their communicators.
        self._tensor, self._stages = ranks.along("tp"), ranks.along("pp")
        # With blocks over ranks, who holds what is known by asking.
        local_text = "\n".join(f"{name} {parameter.numel()}" for name, parameter in self._wholes.items())
        held = [line.split() for text in self._stages.gather_text(local_text) for line in text.splitlines()]
        self._holders = Counter(name for name, _ in held)
        self.count = sum(int(values) for values in dict(held).values())
        self.executor: StepExecutor | None = None
        self._pace = Pace(ranks.world.device)

    def share(self) -> None:
        """Make all ranks start from equal weights, including values written through `place`."""
        self.ranks.along(*SUMMED).broadcast_(list(self.weights.values()))

    def zero_gradients(self) -> None:
        """Zero all gradients at the begin of a step."""
        self.optimizer.zero_grad(set_to_none=False)

    def passes(
        self,
        batches: Iterable[Microbatch | Pack],
        weigh: Weigh,
        clock: StepClock,
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Run the microbatches of a step forward and backward; yields each with its losses, in order.

        Under a cascade plan, yields the microbatches that this rank reports, whichever rank has read and run
        them.

        Args:
            batches: this rank's microbatches.
            weigh: adds a microbatch to the step and returns its weighted loss.
            clock: clock that times this rank's activities, and each microbatch if they run one after the other.
        """
        # Blocks over ranks: all microbatches of the step at once.
        if self._pipeline is not None:
            batches = list(batches)
            with clock.part("sync"):
                dummy_rounds = self.missing_rounds(len(batches))
                self.join_texts(self.missing_texts(dummy_rounds + len(batches)))
            yield from self._pipeline.passes(batches, weigh, dummy_rounds, clock, self.before_backward)
            return
        # Under a cascade plan, modules of a microbatch run on several ranks.
        if self.executor is not None:
            yield from self.executor.passes(batches, weigh, clock)
            return
        # Else one after the other, each forward and backward.
        device = self.ranks.world.device
        for batch in batches:
            if batch.slot == 0:
                with clock.part("sync"):
                    self.run_dummy_steps(batch.slots)
            self._pace.begin()
            with clock.microbatch(batch):
                batch_losses = losses(
                    self.bundle, self._config.losses, batch, device, None, self.errors, clock.part
                )
                loss = weigh(batch, batch_losses)
                self.before_backward(batch.ends_step)
                with clock.part("backward"):
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            yield batch, batch_losses

    @property
    def accumulates(self) -> bool:
        """True if all but the last backward of a step keep gradients in further memory."""
        return False

    def before_backward(self, last: bool) -> None:
        """Prepare for a backward; with the last one of a step sums over ranks begin.

        Args:
            last: True if it is the last one.
        """
        if last:
            self._buckets.ready.arm()

    def missing_rounds(self, _rounds: int) -> int:
        """Return the number of dummy steps that match this rank's rounds to other ranks'; a collective."""
        return 0

    def run_dummy_steps(self, rounds: int) -> None:
        """Run the dummy steps that other ranks' collectives need before ``rounds`` runs of the model."""
        missing = self.missing_rounds(rounds)
        # Counted before any of them: other ranks may need none, and go on to the model's collectives.
        texts = self.missing_texts(rounds + missing)
        for _ in range(missing):
            zero = dummy_step(self.bundle, self.dtype, self.ranks, self.errors)
            if zero.requires_grad:
                self.before_backward(last=False)
                zero.backward()  # type: ignore[no-untyped-call]  # torch's own
        self.join_texts(texts)

    def missing_texts(self, rounds: int) -> int:
        """Return how often this rank must encode beside ``rounds`` times, for ranks that share its text encoder."""
        return self.ranks.node.largest(rounds) - rounds if self.bundle.text.lockstep else 0

    def join_texts(self, times: int) -> None:
        """Take part in encodings of other ranks."""
        for _ in range(times):
            self.bundle.text.join()

    def sum_gradients(self) -> None:
        """Sum gradients over the ranks after all microbatches."""
        if self.executor is None:
            self._buckets.sum_()
        else:
            for buffer in self._buckets.buffers:
                self.executor.sum_([buffer])
        self._sum_over_model_ranks()

    def norm(self) -> torch.Tensor:
        """Return the norm of the whole gradients, the same on all ranks, on the device; a collective of shards."""
        stages = self.ranks.mesh.pp
        divided = stages > 1 or any(pieces.parts(parameter) > 1 for parameter in self._wholes.values())
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        if divided:
            world = self.ranks.world
            return pieces.norm(
                (
                    (
                        self._gradient(name),
                        world.size * self._holders[name] // stages // pieces.parts(parameter),
                    )
                    for name, parameter in self._wholes.items()
                ),
                world,
            )
        return torch.nn.utils.get_total_norm(gradients)

    def clip(self, largest: float, norm: torch.Tensor) -> None:
        """Clip gradients of a norm, a scalar on the device, to a largest norm."""
        torch.nn.utils.clip_grads_with_norm_(self.weights.values(), largest, norm)

    def update(self) -> None:
        """Run the optimizer's step."""
        self.optimizer.step()
        self.refresh()

    def refresh(self) -> None:
        """Make the model compute with the values in ``weights``, wherever it holds copies of them; a collective."""

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors placed like the weights, by name: plain if whole, otherwise DTensors; in the same memory.

        Values written into weights through them take effect at the next `share`.
        """
        return {name: pieces.place_piece(tensor, self._wholes[name]) for name, tensor in tensors.items()}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state, named WEIGHT.NAME and placed as in `place`."""
        return {
            name: pieces.place_piece(tensor, self._wholes[key]) if tensor.ndim else tensor
            for key, weight in self.weights.items()
            for name, tensor in state_tensors(self.optimizer, {key: weight}).items()
        }

    def _summed_whole(self) -> list[str]:
        """Return names of the weights whose whole gradients are summed."""
        return list(self.weights)

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self.weights[name].grad
        assert gradient is not None, f"{name} has no gradient"
        return gradient

    def _sum_over_model_ranks(self) -> None:
        """Sum partial gradients over ranks with the same samples."""
        if self._tensor.size > 1:
            self._tensor.sum_(
                [self._gradient(name) for name in self.weights if summed_over_tensor_ranks(name)]
            )
        if self._stages.size > 1:
            self._stages.sum_([self._gradient(name) for name in self.weights if self._holders[name] > 1])


class DDP(ParallelModel):
    """Whole state on every data-parallel rank; gradients are summed once per step."""
