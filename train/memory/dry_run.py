"""Dry run of a training step that predicts its GPU memory without a GPU.

Rank 0 of any number of ranks is laid out and runs steps with the training code, on tensors without data and
with collectives that send nothing. Models, layouts and checkpointing policies are thus those of the run. Fused
operators are assumed to allocate only their outputs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from loader.errors import UsageError
from train.config.run import TrainConfig
from train.config.text import HashedTextConfig
from train.distributed.world import World
from train.memory.live_memory import LiveMemory
from train.memory.shapes import StepShape
from train.models.bundle import Bundle
from train.models.encoders.tokenizer import LatentSizes
from train.parallel.dit import parallelize
from train.parallel.layout import layout_of
from train.parallel.layouts.parallel_model import ParallelModel
from train.parallel.mesh import DATA, SUMMED, Mesh, Ranks
from train.parallel.rank_grid import CONTEXT
from train.step.ema import Ema
from train.step.squared_errors import DenoisingInputs

_FAKE = torch.device("cpu")


class Footprint(NamedTuple):
    """Bytes on the rank with the highest peak.

    Attributes:
        state: permanent bytes: weights, gradients, optimizer state, EMA and frozen encoders.
        kept: bytes that the forward of a microbatch saves for its backward.
        passes: peak of forward and backward.
        step: peak including the gradient reduction.
        update: peak of the optimizer's update.
        ahead: bytes of the next microbatch's pixels, which come while this one is computed (`train.models.transfer`).
    """

    state: int
    kept: int
    passes: int
    step: int
    update: int
    ahead: int = 0

    @property
    def peak(self) -> int:
        """Peak bytes of the whole step."""
        return max(self.step, self.update) + self.ahead


def dry_run(
    config: TrainConfig, shapes: Sequence[StepShape], ranks: int = 1, encoded: bool = False
) -> list[Footprint]:
    """Predict the memory of a step with one microbatch of each shape per data-parallel rank, uncompiled.

    Excluded are workspaces of kernels, reserves of CUDA and its libraries, and the forward of a published text
    encoder.

    Args:
        config: configuration of the run.
        shapes: shapes of microbatches.
        ranks: number of ranks.
        encoded: True if latents are stored, so that the VAE and its weights are excluded.

    Raises:
        UsageError: the layout is invalid, or the dry run does not support it: checkpointing by the
            compiler, pipeline stages, or a model that depends on values.
    """
    if config.parallel.activation_checkpointing == "memory_budget":
        raise UsageError(
            "parallel.activation_checkpointing=memory_budget is left to the compiler, so its memory is not predicted;"
            " take none, selective or full"
        )
    if config.parallel.pp > 1:
        raise UsageError(
            "parallel.pp=1 alone is predicted: how many microbatches a stage keeps depends on the step"
        )
    parallel = config.parallel.model_copy(update={"compile": False, "schedule": "static"})
    config = config.model_copy(update={"parallel": parallel, "device": "cpu"})
    mesh = Mesh.of(config.parallel, ranks)
    kind = layout_of(config, mesh)
    with _world(ranks) as world:
        bundle, grid = Bundle(config, meta=True), Ranks(mesh, world)
        if encoded:
            bundle.tokenizer = LatentSizes(bundle.tokenizer)
        parallelize(bundle.dit, grid, config)
        _meet(grid)
        with FakeTensorMode(allow_non_fake_inputs=True), LiveMemory() as memory:
            try:
                layout = kind(bundle.to_empty(device=_FAKE), config, grid)
                average = Ema(config.ema, layout.weights)
                layout.share()
                found = [_step(layout, config, shape, memory) for shape in shapes]
                del average
                return found
            except DataDependentOutputException as error:
                raise UsageError(f"this model cannot be rehearsed: it looks at values ({error})") from error


def _step(layout: ParallelModel, config: TrainConfig, shape: StepShape, memory: LiveMemory) -> Footprint:
    state = memory.peak = memory.live
    if layout.accumulates:
        layout.before_backward(last=False)
        _errors(layout, config, shape).mean().backward()  # type: ignore[no-untyped-call]  # torch's own
    before = memory.live
    loss = _errors(layout, config, shape).mean()
    kept = memory.live - before
    layout.before_backward(last=True)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    passes = memory.peak
    layout.sum_gradients()
    # On a GPU AdamW allocates the roots of all second moments at once (foreach).
    roots = sum(weight.nbytes for weight in layout.weights.values())
    return Footprint(state, kept, passes, memory.peak, state + roots, math.prod(_pixels(shape)))


def _errors(layout: ParallelModel, config: TrainConfig, shape: StepShape) -> torch.Tensor:
    """Return squared errors as `train.step.losses.losses` computes them, [B]."""
    bundle = layout.bundle
    with torch.no_grad():
        clean = bundle.tokenizer.encode(torch.empty(_pixels(shape), dtype=torch.uint8))
    noise, targets = torch.empty_like(clean), torch.empty_like(clean)
    channels = clean.shape[1] + bundle.dit.condition_channels
    inputs = clean.new_empty((shape.batch, channels, *clean.shape[2:]))
    del clean, noise
    with torch.autocast(_FAKE.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        context, mask = _text(bundle, config, shape.batch)
        asked = DenoisingInputs([inputs], [targets], torch.empty(shape.batch), context, mask, packed=False)
        return layout.errors(bundle.dit, asked)


def _pixels(shape: StepShape) -> tuple[int, ...]:
    """Return the shape of a microbatch's pixels."""
    bucket = shape.bucket
    return shape.batch, 3, bucket.frames, bucket.height, bucket.width


def _text(bundle: Bundle, config: TrainConfig, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the longest captions' context and mask."""
    length = config.text.max_text_tokens
    if isinstance(config.text, HashedTextConfig):
        context, mask = bundle.text([" ".join(f"word{number}" for number in range(length))] * samples)
        return context, mask
    rows = length + bool(bundle.text.pooled_width)
    return torch.empty(samples, rows, bundle.text.width), torch.ones(samples, rows, dtype=torch.bool)


@contextmanager
def _world(ranks: int) -> Iterator[World]:
    """Enter a world as rank 0 with collectives that do nothing."""
    if ranks == 1:
        yield World(0, 1, _FAKE)
        return
    if dist.is_initialized():
        raise UsageError("this process is one of a run's ranks; rehearse in a process of its own")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield World(0, ranks, _FAKE)
    finally:
        dist.destroy_process_group()


def _meet(grid: Ranks) -> None:
    """Create the process groups of a layout before tensors lose their data."""
    if grid.world.size == 1:
        return
    _ = grid.weights["dp_replicate", "dp_shard"]
    for dimensions in (DATA, CONTEXT, SUMMED, ("dp_shard", *CONTEXT), ("dp_replicate",), ("tp",), ("pp",)):
        grid.along(*dimensions)
    if grid.mesh.degree(CONTEXT) > 1:
        _ = grid.context
