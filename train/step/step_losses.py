"""What a rank's microbatches add to a step: gradients to sum, losses to report, and what both are divided by."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch

from loader.batch import Batch
from loader.errors import UsageError
from train.distributed.world import World
from train.models.denoiser import Work

Denominator = Literal["step", "epoch", "step_tokens"]
B = TypeVar("B", bound=Batch)


class SampleLosses(Protocol):
    """What B samples came to (`train.step.losses.Losses`)."""

    @property
    def each(self) -> torch.Tensor:
        """Loss of each sample, [B], on the device."""

    @property
    def video_tokens(self) -> tuple[int, ...]:
        """Of each sample."""

    @property
    def work(self) -> Work:
        """What all of them came to."""


@dataclass(frozen=True, eq=False)
class _Done:
    batch: Batch
    losses: SampleLosses
    mean: torch.Tensor
    unit: float


class StepLosses:
    """This rank's microbatches of a step. Losses stay on the device until the step is over: to look is to wait.

    Gradients are those of the mean over the step's samples on all ranks; each microbatch is weighed by its share of
    them. With ``step_tokens`` a sample counts by its video tokens, and since no rank knows the others' tokens before
    the backward, the sum of all is divided out of the summed gradients.
    """

    def __init__(self, denominator: Denominator) -> None:
        self._denominator = denominator
        self._done: list[_Done] = []
        self._any: Batch | None = None
        self._unit = 1.0

    @property
    def step_samples(self) -> int:
        """Samples of the step on all ranks."""
        return self._one.step_samples

    def seen(self, batches: Iterable[B]) -> Iterator[B]:
        """The same batches: a rank that reads some of a step may be asked to run others, or none."""
        for batch in batches:
            self._any = batch
            yield batch

    def add(self, batch: Batch, losses: SampleLosses) -> torch.Tensor:
        """Takes a microbatch that went through the model; the scalar whose gradient it adds."""
        counted_B, unit = losses.each, 1.0
        if self._denominator == "step_tokens":
            counted_B = counted_B * torch.tensor(losses.video_tokens, device=counted_B.device)
            unit = statistics.fmean(losses.video_tokens)
        mean = counted_B.mean()
        self._any = batch
        self._done.append(_Done(batch, losses, mean.detach(), unit))
        return batch.weight * mean

    def totals(
        self, world: World, data_ranks: int, notes: Sequence[float] = ()
    ) -> tuple[float, Work, list[float]]:
        """Loss and work of the step, and the sums of ``notes`` over all ranks.

        A microbatch of weight 0 repeats samples that count elsewhere.

        Args:
            world: all ranks.
            data_ranks: how many of them have samples of their own; the others have the same as one of these.
            notes: what else this rank tells.

        Raises:
            UsageError: the weights of the step's microbatches do not add up to 1.
        """
        loss = sum(done.batch.weight * done.mean.item() for done in self._done)
        weight = sum(done.batch.weight for done in self._done)
        unit = sum(done.batch.weight * done.unit for done in self._done)
        done = [done.losses.work for done in self._done if done.batch.weight]
        tokens, flops = sum(work.tokens for work in done), sum(work.flops for work in done)
        own = [loss, weight, unit, tokens, flops]
        totals = torch.tensor([*own, *notes], dtype=torch.float64, device=world.device)
        world.sum_([totals])
        totals[: len(own)] /= world.size // data_ranks
        loss, weight, unit, tokens, flops, *told = totals.tolist()
        if abs(weight - 1) > 1e-6:
            raise UsageError(
                f"the microbatch weights of a step add up to {weight:g} over {data_ranks} ranks, not to 1: "
                "open each rank's stream with its own rank and this world size"
            )
        if self._denominator == "step_tokens":
            self._unit, loss = unit, loss / unit
        return loss, Work(int(tokens), int(flops)), told

    def normalise_(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Makes summed gradients those of the reported loss, once its totals are known."""
        if self._denominator == "step_tokens":
            _scale_(weights, 1 / self._unit)

    def spread_(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """With ``epoch``, makes means over the step's samples sums over them, in units of a mean step."""
        if self._denominator == "epoch":
            _scale_(weights, self._one.step_samples / self._one.mean_samples)

    def nonfinite(self, step: int, count: int, rank: int) -> str:
        """What to tell a person after so many steps in a row that were not finite, up to this one."""
        return (
            f"loss or gradient was not finite in {count} steps in a row, up to step {step} "
            f"(samples on rank {rank}: {', '.join(self._suspects()[:8]) or 'none'}); "
            "lower optimizer.lr, or look at these clips"
        )

    @property
    def _one(self) -> Batch:
        assert self._any is not None, "a step of no batch"
        return self._any

    def _suspects(self) -> list[str]:
        """Keys of the samples whose loss is not finite; of all, where every loss is."""
        keys = [key for done in self._done for key in done.batch.keys]
        finite = [good for done in self._done for good in done.losses.each.isfinite().tolist()]
        return [key for key, good in zip(keys, finite, strict=True) if not good] or keys


def _scale_(weights: Iterable[torch.nn.Parameter], factor: float) -> None:
    for weight in weights:
        if weight.grad is not None:
            weight.grad.mul_(factor)
