"""Losses of a step: how microbatches are weighed, summed over ranks, and what gradients are divided by."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

import torch

from reelweave.loader.batch import Batch
from reelweave.loader.errors import UsageError
from reelweave.train.models.denoiser import ComputeTotals
from reelweave.train.models.transfer import send_one

Denominator = Literal["step", "epoch", "step_tokens"]
B = TypeVar("B", bound=Batch)


class LossSums(NamedTuple):
    """Sums over microbatches, of one rank or of all.

    Attributes:
        loss: Sum of mean losses, each times the microbatch's share of the step.
        weight: Sum of these shares; with the missing ones 1 over all samples.
        missing: Sum of the shares of samples that could not be read and nothing replaces.
        unit: Sum of mean video tokens times shares; of ones, where samples count alike.
        tokens: Text and video tokens.
        flops: Floating-point operations of forward and backward.
    """

    loss: float
    weight: float
    missing: float
    unit: float
    tokens: float
    flops: float


class SampleLosses(Protocol):
    """Losses of B samples (`reelweave.train.step.losses.Losses`)."""

    @property
    def each(self) -> torch.Tensor:
        """Return the loss of each sample, [B], on the device."""

    @property
    def video_tokens(self) -> tuple[int, ...]:
        """Return the number of video tokens of each sample."""

    @property
    def work(self) -> ComputeTotals:
        """Return tokens and operations of all samples together."""


@dataclass(frozen=True, eq=False)
class _Done:
    batch: Batch
    losses: SampleLosses
    mean: torch.Tensor
    unit: float


class StepLosses:
    """Losses of this rank's microbatches in one step.

    Losses stay on the device until the end of the step, because reading one waits for the device. Gradients are those
    of the mean over the step's samples on all ranks: a microbatch is weighed by its share of them, whatever the stream
    divides its weights by, so that nothing is divided twice. With ``epoch`` they are spread behind the clipping. With
    ``step_tokens`` a sample counts by its video tokens. No rank knows the others' tokens before the backward, so the
    summed gradients are divided by the sum.
    """

    def __init__(self, denominator: Denominator) -> None:
        self._denominator = denominator
        self._done: list[_Done] = []
        self._any: Batch | None = None
        self._unit = 1.0

    @property
    def step_samples(self) -> int:
        """Return the number of samples of the step on all ranks."""
        return self._one.step_samples

    def note_batches(self, batches: Iterable[B]) -> Iterator[B]:
        """Yield the batches that a rank reads, noting one: the rank may run other ranks' batches, or none."""
        for batch in batches:
            self._any = batch
            yield batch

    def add(self, batch: Batch, losses: SampleLosses) -> torch.Tensor:
        """Add the losses of a microbatch; return the scalar to differentiate."""
        counted_B, unit = losses.each, 1.0
        if self._denominator == "step_tokens":
            counted_B = counted_B * send_one(torch.tensor(losses.video_tokens), counted_B.device)
            unit = statistics.fmean(losses.video_tokens)
        mean = counted_B.mean()
        self._any = batch
        self._done.append(_Done(batch, losses, mean.detach(), unit))
        return batch.share * mean

    @property
    def means(self) -> list[torch.Tensor]:
        """Return the mean loss of each microbatch, scalars on the device."""
        return [done.mean for done in self._done]

    def sums(self, means: Sequence[float]) -> LossSums:
        """Return this rank's sums.

        A microbatch of weight 0 repeats samples that count elsewhere.

        Args:
            means: `means`, read from the device.
        """
        works = [done.losses.work for done in self._done if done.batch.weight]
        return LossSums(
            loss=sum(done.batch.share * mean for done, mean in zip(self._done, means, strict=True)),
            weight=sum(done.batch.share for done in self._done),
            missing=sum(done.batch.missing_share for done in self._done),
            unit=sum(done.batch.share * done.unit for done in self._done),
            tokens=sum(work.tokens for work in works),
            flops=sum(work.flops for work in works),
        )

    def mean(self, total: LossSums, world_size: int, data_ranks: int) -> tuple[float, ComputeTotals]:
        """Return loss and work of the step; `normalise_` divides by the same sum from here on.

        The loss is the mean over the samples that are there; 0 if none is.

        Args:
            total: Sum of all ranks' `sums`.
            world_size: Number of ranks.
            data_ranks: Number of ranks with different samples; the others repeat the samples of one of them.

        Raises:
            UsageError: The weights of the step's microbatches do not add up to 1.
        """
        loss, weight, missing, unit, tokens, flops = (value / (world_size // data_ranks) for value in total)
        if abs(weight + missing - 1) > 1e-6:
            raise UsageError(
                f"the microbatch weights of a step add up to {weight + missing:g} over {data_ranks} ranks, not to 1: "
                "open each rank's stream with its own rank and this world size"
            )
        if self._denominator == "step_tokens":
            self._unit = unit or 1.0
            loss = loss / self._unit
        elif missing:
            loss = loss / (weight or 1.0)
        return loss, ComputeTotals(int(tokens), int(flops))

    @property
    def scale(self) -> float:
        """Return the factor from summed gradients to those of the reported loss, once `mean` is known."""
        return 1 / self._unit

    def normalise_(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Scale summed gradients to those of the reported loss, once `mean` is known."""
        if self._denominator == "step_tokens":
            _scale_(weights, self.scale)

    def spread_(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """With ``epoch``, scale gradients from means over the step's samples to sums, in units of a mean step."""
        if self._denominator == "epoch":
            _scale_(weights, self._one.step_samples / self._one.mean_samples)

    def nonfinite(self, step: int, count: int, rank: int) -> str:
        """Return the error message for ``count`` non-finite steps in a row, up to this one."""
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
        """Return the keys of samples whose loss is not finite; of all samples, where every loss is finite."""
        keys = [key for done in self._done for key in done.batch.keys]
        finite = [good for done in self._done for good in done.losses.each.isfinite().tolist()]
        return [key for key, good in zip(keys, finite, strict=True) if not good] or keys


def _scale_(weights: Iterable[torch.nn.Parameter], factor: float) -> None:
    for weight in weights:
        if weight.grad is not None:
            weight.grad.mul_(factor)
