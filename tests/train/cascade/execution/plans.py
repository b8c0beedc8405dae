"""Random plans, a small model to run them with, and what one process makes of the same samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from reelweave.loader.buckets.tokens import Compression
from reelweave.train.cascade.execution.executor import Executor
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.execution.representatives import Representatives, WholeGradients
from reelweave.train.cascade.execution.step import StepReport
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.config.model import DiTConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.denoise import ContextParallelErrors
from reelweave.train.step.squared_errors import DenoisingInputs, whole_model_errors
from tests.train.clips import tiny_config

WORDS, WIDTH = 5, 16
"""Of a caption's context."""
HEADS = 4
COMPRESSION = Compression(frames=2, height=4, width=4, causal=True)


class Sample(NamedTuple):
    """A microbatch of B clips of 8 x 8 pixels or more.

    Attributes:
        seed: of its pixels, context and noise; several samples may have the same.
        batch: B.
        frames: of each clip.
        width: in pixels.
        owner: the rank that has it.
        stored: whether its latents are there.
        text: "cascade", "stored", or "none", where the DiT needs none.
    """

    seed: int
    batch: int
    frames: int
    width: int
    owner: int
    stored: bool
    text: str

    @property
    def tokens(self) -> int:
        """Of a clip."""
        return (1 + (self.frames - 1) // 2) * 2 * (self.width // 4)


@dataclass(frozen=True)
class Plan:
    """A random step.

    Attributes:
        samples: of the step.
        schedule: valid, with times that are made up.
    """

    samples: tuple[Sample, ...]
    schedule: Schedule


def random_plan(seed: int, ranks: int) -> Plan:
    """Overlapping groups of any size, idle ranks, repeated samples, and any order that precedence allows."""
    draw = np.random.default_rng([seed, ranks])
    count = int(draw.integers(1, 7))
    active = draw.permutation(ranks)[: int(draw.integers(1, ranks + 1))]
    samples = tuple(
        Sample(
            seed=int(draw.integers(0, 4)),
            batch=int(draw.integers(1, 4)),
            frames=int(draw.choice([1, 3, 5])),
            width=int(draw.choice([8, 12])),
            owner=int(draw.integers(0, ranks)),
            stored=bool(draw.random() < 0.3),
            text=str(draw.choice(["cascade", "stored", "none"])),
        )
        for _ in range(count)
    )
    cascades = [
        cascade
        for number, sample in enumerate(samples)
        for cascade in (
            Cascade(number, Module.TEXT),
            Cascade(number, Module.VAE),
            Cascade(number, Module.DIT),
        )
        if not (cascade.module == Module.VAE and sample.stored)
        and not (cascade.module == Module.TEXT and sample.text != "cascade")
    ]
    key = {cascade: draw.random() for cascade in cascades}
    for cascade in cascades:
        if cascade.module == Module.DIT:
            key[cascade] = max(value for other, value in key.items() if other.sample == cascade.sample) + 1e-9
    runs = []
    for place, cascade in enumerate(sorted(cascades, key=key.__getitem__)):
        sample = samples[cascade.sample]
        most = {Module.TEXT: 1, Module.VAE: 4, Module.DIT: sample.tokens}[cascade.module]
        degree = int(draw.integers(1, min(len(active), most) + 1))
        gpus = tuple(sorted(draw.permutation(active)[:degree].tolist()))
        runs.append(Run(cascade, float(place), float(place + 1), gpus))
    return Plan(samples, Schedule.of(runs, ranks))


def tiny_bundle(dtype: torch.dtype) -> Bundle:
    """A DiT of four heads; the text encoder is not part of these plans."""
    bundle = Bundle(small_config())
    bundle.dit.to(dtype)
    return bundle


def small_config() -> TrainConfig:
    model = DiTConfig(hidden=32, heads=HEADS, layers=2, patch=(1, 2, 2))
    return tiny_config().model_copy(update={"model": model})


class TinyWork:
    """`reelweave.train.cascade.execution.ops.CascadeOps` of random samples.

    Args:
        bundle: the model.
        samples: of the step.
        rank: of this process.
        dtype: of latents and contexts.
    """

    def __init__(self, bundle: Bundle, samples: Sequence[Sample], rank: int, dtype: torch.dtype) -> None:
        self.bundle, self.samples, self.rank, self.dtype = bundle, samples, rank, dtype
        self.given: dict[int, dict[Module, list[torch.Tensor]]] = {}
        self.before_train = self.after_train = lambda ranks: None

    def owner(self, sample: int) -> int:
        return self.samples[sample].owner

    def input_specs(self, cascade: Cascade) -> list[TensorSpec]:
        own = self.samples[cascade.sample]
        size = (3, own.frames, 8, own.width)
        return [TensorSpec(size, torch.uint8)] * own.batch if cascade.module == Module.VAE else []

    def output_specs(self, cascade: Cascade) -> list[TensorSpec]:
        own = self.samples[cascade.sample]
        if cascade.module == Module.TEXT:
            size = (own.batch, WORDS, WIDTH)
            mask = TensorSpec((own.batch, WORDS), torch.bool)
            return [TensorSpec(size, self.dtype), mask] if own.text != "none" else []
        tokenizer = self.bundle.tokenizer
        size = (tokenizer.channels, *tokenizer.latent_size((own.frames, 8, own.width)))
        return [TensorSpec(size, self.dtype)] * own.batch

    def source(self, cascade: Cascade) -> list[torch.Tensor]:
        own = self.samples[cascade.sample]
        assert own.owner == self.rank
        if cascade.module == Module.TEXT:
            return list(context_of(own, self.dtype))
        pixels = list(pixels_of(own))
        return pixels if not own.stored else [self._encoded([clip])[0] for clip in pixels]

    def make(
        self, cascade: Cascade, numbers: Sequence[int], taken: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        own = self.samples[cascade.sample]
        if cascade.module == Module.TEXT:
            return [context_of(own, self.dtype)[number] for number in numbers]
        assert len(taken) == len(numbers)
        return self._encoded(taken)

    def train(
        self,
        sample: int,
        given: Mapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        self.given[sample] = dict(given)
        own = self.samples[sample]
        clean_BCTHW = torch.stack(given[Module.VAE])
        context_BMD, mask_BM = given.get(Module.TEXT) or nothing_said(own, self.dtype)
        self._backward(own, clean_BCTHW, context_BMD, mask_BM, context)

    def alone(self, number: int) -> None:
        """The same on one process that has all of the sample."""
        own = self.samples[number]
        clean_BCTHW = torch.cat([self._encoded([clip])[0][None] for clip in pixels_of(own)])
        said = context_of(own, self.dtype) if own.text != "none" else nothing_said(own, self.dtype)
        self._backward(own, clean_BCTHW, *said, None)

    def _backward(
        self,
        own: Sample,
        clean_BCTHW: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        context: ContextParallel | None,
    ) -> None:
        noise_BCTHW = torch.randn(clean_BCTHW.shape, generator=_generator(own, 3), dtype=self.dtype)
        times_B = torch.linspace(0.2, 0.8, own.batch, dtype=self.dtype)
        inputs_BCTHW, targets_BCTHW = 0.6 * clean_BCTHW + 0.8 * noise_BCTHW, noise_BCTHW - clean_BCTHW
        asked = DenoisingInputs([inputs_BCTHW], [targets_BCTHW], times_B, context_BMD, mask_BM, packed=False)
        errors_B = (ContextParallelErrors(context) if context else whole_model_errors)(self.bundle.dit, asked)
        (errors_B.sum() / sum(sample.batch for sample in self.samples)).backward()

    def _encoded(self, clips: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [latent.to(self.dtype) for latent in self.bundle.tokenizer.encode(torch.stack(list(clips)))]


def context_of(own: Sample, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What is said of its clips: rows, and which of them count."""
    rows_BMD = torch.randn(own.batch, WORDS, WIDTH, generator=_generator(own, 1), dtype=dtype)
    mask_BM = torch.rand(own.batch, WORDS, generator=_generator(own, 2)) < 0.6
    mask_BM[:, 0] = True
    return rows_BMD, mask_BM


def nothing_said(own: Sample, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(own.batch, 1, WIDTH, dtype=dtype), torch.ones(own.batch, 1, dtype=torch.bool)


def pixels_of(own: Sample) -> torch.Tensor:
    """uint8 [B, 3, T, H, W]."""
    size = (own.batch, 3, own.frames, 8, own.width)
    return torch.randint(0, 256, size, generator=_generator(own, 0), dtype=torch.uint8)


def _generator(own: Sample, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(17 * own.seed + stream)


class Runner:
    """Runs given plans on this rank, one after the other, with one model."""

    def __init__(
        self, world: World, dtype: torch.dtype, plans: Iterable[Plan], limit_bytes: int | None = None
    ) -> None:
        self.world, self.dtype = world, dtype
        self.bundle = tiny_bundle(dtype)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():  # what begins at zero would hide gradients behind it
            for weight in self.bundle.dit.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator, dtype=dtype) * 0.2)
        self.weights = list(self.bundle.dit.parameters())
        menu = dict.fromkeys(run.gpus for plan in plans for run in plan.schedule.runs)
        self.pool = GroupPool(world, HEADS, menu)
        self.executor = Executor(world, self.pool, limit_bytes)

    def gradients(self, plan: Plan) -> StepReport:
        """Leaves the summed gradients of a plan in the weights."""
        self.zero()
        work = TinyWork(self.bundle, plan.samples, self.world.rank, self.dtype)
        report = self.executor.run(plan.schedule, work, StepClock(self.world))
        self.world.sum_([weight.grad for weight in self.weights])
        return report

    def by_representatives(self, plan: Plan) -> bool:
        """The same by representatives; False, and nothing is run, where there are none."""
        found = Representatives.of(plan.schedule)
        if found is None:
            return False
        self.zero()
        work = TinyWork(self.bundle, plan.samples, self.world.rank, self.dtype)
        self.executor.run(plan.schedule, WholeGradients(work, self.weights), StepClock(self.world))
        found.sum_(self.world, [weight.grad for weight in self.weights])
        return True

    def error(self, plan: Plan) -> float:
        """Of the gradients, relative to their norm, against one process's; on rank 0, which alone finds out."""
        if self.world.rank:
            return 0.0
        found = [weight.grad.clone() for weight in self.weights]
        self.zero()
        work = TinyWork(self.bundle, plan.samples, 0, self.dtype)
        for number in range(len(plan.samples)):
            work.alone(number)
        expected = [weight.grad for weight in self.weights]
        difference = sum((a - b).double().square().sum() for a, b in zip(found, expected, strict=True))
        return float((difference / sum(b.double().square().sum() for b in expected)).sqrt())

    def same_everywhere(self) -> bool:
        """Whether this rank has the gradients of rank 0, to the last bit."""
        first = [weight.grad.clone() for weight in self.weights]
        self.world.broadcast_(first)
        return all(torch.equal(weight.grad, one) for weight, one in zip(self.weights, first, strict=True))

    def zero(self) -> None:
        """Every weight has a gradient, also where no DiT runs."""
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
