"""Profile of a run's cascades: text encoder, VAE and DiT of every shape, timed separately, the DiT at each degree."""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.errors import RunError, UsageError
from reelweave.train.cascade.costs.profile_csv import MeasuredCascade
from reelweave.train.cascade.problem import Module
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.parts import StepConfig
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import StepPart
from reelweave.train.memory.shapes import StepShape, noise, shapes
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.context.denoise import ContextParallelErrors
from reelweave.train.parallel.context.token_shard import cuttable
from reelweave.train.parallel.dit import parallelize
from reelweave.train.parallel.layouts.zero1 import hold_, narrowed_names
from reelweave.train.parallel.mesh import Mesh, Ranks
from reelweave.train.step.losses import losses
from reelweave.train.step.squared_errors import DenoisingInputs, SquaredErrors, whole_model_errors

WARM_UP = 1


class CascadeTimer:
    """Timer of one microbatch's cascades, synchronized with the device.

    Args:
        device: compute device.
        errors: function that runs the DiT.
    """

    def __init__(self, device: torch.device, errors: SquaredErrors) -> None:
        self._device, self._errors = device, errors
        self._began, self._before = 0.0, 0
        self.seconds = dict.fromkeys(Module, 0.0)
        self.peak_bytes = dict.fromkeys(Module, 0)

    @contextmanager
    def part(self, name: StepPart) -> Iterator[None]:
        """Time an encoder, as `reelweave.train.measure.timings.Timed`."""
        self._begin()
        yield
        self._end({"text": Module.TEXT, "vae": Module.VAE}[name])

    def errors(self, dit: Denoiser, inputs: DenoisingInputs) -> torch.Tensor:
        """Run the DiT as `SquaredErrors` and start its timer."""
        self._begin()
        return self._errors(dit, inputs)

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass and stop the DiT's timer."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._end(Module.DIT)

    def _begin(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        self._began = time.perf_counter()

    def _end(self, module: Module) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self.peak_bytes[module] += torch.cuda.max_memory_allocated(self._device) - self._before
        self.seconds[module] += time.perf_counter() - self._began


def profile(
    config: StepConfig, buckets: BucketConfig, world: World, rounds: int = 3
) -> Iterator[MeasuredCascade]:
    """Run every shape, smallest first; yields the same rows on every rank.

    Weights and gradients are whole on each rank, as under ZeRO-1. A shape that exceeds a GPU's memory has no
    row for that degree, and thus no cascade.

    Args:
        config: configuration of the step; of its layout only activation checkpointing and compilation apply.
        buckets: buckets of the run's stream.
        world: all ranks; groups of k adjacent ranks run the same microbatch concurrently.
        rounds: number of timed rounds.

    Raises:
        RunError: no shape fits.
    """
    parallel = config.layout.parallel
    alone = ParallelConfig(
        activation_checkpointing=parallel.activation_checkpointing,
        activation_memory_budget=parallel.activation_memory_budget,
        compile=parallel.compile,
    )
    config = config.with_parallel(alone)
    bundle = Bundle(config.modules)
    parallelize(bundle.dit, Ranks(Mesh(dp_replicate=world.size), world), config.layout)
    bundle.to(world.device)
    narrowed = narrowed_names(bundle, config.layout.dtype)
    for name, weight in bundle.trained_weights().items():
        hold_(weight, name in narrowed)
    runners = {degree: _errors_of(bundle.dit, degree, world) for degree in degrees_of(bundle.dit, world.size)}
    fits = False
    for shape in shapes(buckets):
        for degree, errors in runners.items():
            if degree > shape.length - buckets.max_text_tokens:  # some rank would have no tokens
                continue
            module_costs = _measure_modules(bundle, config, shape, errors, world, rounds)
            if module_costs is None:
                continue
            fits = True
            for module in Module if degree == 1 else [Module.DIT]:
                yield _row(module, shape, degree, *module_costs[module])
    if not fits:
        raise RunError("no shape fits the GPU, with no degree: start more ranks, or give smaller buckets")


def degrees_of(dit: Denoiser, ranks: int) -> list[int]:
    """Return the divisors of the number of ranks; 1 alone without context parallelism."""
    try:
        cuttable(dit)
    except UsageError:
        return [1]
    return [degree for degree in range(1, ranks + 1) if ranks % degree == 0]


def _errors_of(dit: Denoiser, degree: int, world: World) -> SquaredErrors:
    """Return a DiT runner on groups of adjacent ranks: Ulysses as far as heads divide, rings of such groups beyond."""
    if degree == 1:
        return whole_model_errors
    ulysses = math.gcd(cuttable(dit).full_heads, degree)
    mesh = Mesh(dp_replicate=world.size // degree, ring=degree // ulysses, ulysses=ulysses)
    return ContextParallelErrors(Ranks(mesh, world).context)


def _measure_modules(
    bundle: Bundle, config: StepConfig, shape: StepShape, errors: SquaredErrors, world: World, rounds: int
) -> dict[Module, tuple[float, int | None]] | None:
    """Return seconds and peak of each module, maximum over ranks; None if a rank runs out of memory."""
    meters = []
    # Each round is a microbatch of noise, forward and backward.
    for round_index in range(WARM_UP + rounds):
        meter, full = CascadeTimer(world.device, errors), 0
        world.barrier()
        try:
            batch = noise(config.modules.text.max_text_tokens, shape, 1, round_index)
            batch_losses = losses(
                bundle, config.layout.losses, batch, world.device, errors=meter.errors, part=meter.part
            )
            meter.backward(batch_losses.each.mean())
        except torch.OutOfMemoryError:
            full = 1
        # A rank without memory ends the measurement on all, or the others would wait for it.
        if world.largest(full):
            return None
        meters.append(meter)
    module_costs = {}
    # Medians over rounds of the slowest rank; peaks only where a GPU has any.
    for module in Module:
        seconds = statistics.median(meter.seconds[module] for meter in meters[WARM_UP:])
        peak = max(meter.peak_bytes[module] for meter in meters[WARM_UP:])
        on_a_gpu = world.device.type == "cuda"
        module_costs[module] = (
            world.largest(math.ceil(seconds * 1e9)) / 1e9,
            world.largest(peak) if on_a_gpu else None,
        )
    return module_costs


def _row(module: Module, shape: StepShape, degree: int, seconds: float, peak: int | None) -> MeasuredCascade:
    bucket = shape.bucket
    return MeasuredCascade(
        module.name.lower(),
        shape.batch,
        bucket.frames,
        bucket.height,
        bucket.width,
        shape.length,
        degree,
        seconds,
        None if peak is None else peak / 2**30,
    )
