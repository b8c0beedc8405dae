"""What a run's steps take of a GPU's memory, known before there is a GPU.

The run is laid out and makes its steps as rank 0 of any number of ranks, by the same code as in training, on tensors
without data and over collectives that send nothing; so models, layouts and checkpointing policies are those of the run.
Fused operators are taken to make their outputs and no more.
"""

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
from train.memory.shapes import Shape
from train.models.bundle import Bundle
from train.models.encoders.tokenizer import LatentSizes
from train.parallel.dit import parallelize
from train.parallel.layout import Layout, layout_of
from train.parallel.mesh import CONTEXT, DATA, SUMMED, Mesh, Ranks
from train.step.ema import Ema
from train.step.squared_errors import Question

_FAKE = torch.device("cpu")


class Footprint(NamedTuple):
    """Bytes of the rank that holds most.

    Attributes:
        state: weights, gradients, optimizer state, averages and frozen encoders: there all the time.
        kept: what the forward of a microbatch keeps for its backward.
        passes: most at once in the forward and the backward.
        step: the same with the sums over ranks.
        update: most at once when the optimizer makes its step.
    """

    state: int
    kept: int
    passes: int
    step: int
    update: int

    @property
    def peak(self) -> int:
        """Most at once."""
        return max(self.step, self.update)


def rehearse(
    config: TrainConfig, shapes: Sequence[Shape], ranks: int = 1, encoded: bool = False
) -> list[Footprint]:
    """The memory of a step of one microbatch of each shape on each data-parallel rank, nothing compiled.

    Not counted are what kernels use inside, what CUDA and its libraries reserve, and the forward of a published text
    encoder.

    Args:
        config: of the run.
        shapes: of its microbatches.
        ranks: that it will have.
        encoded: videos come as latents: the VAE is left out, with its weights.

    Raises:
        UsageError: the run cannot be laid out, or not be rehearsed: blocks that the compiler checkpoints, stages, or a
            model that looks at values.
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


def _step(layout: Layout, config: TrainConfig, shape: Shape, memory: LiveMemory) -> Footprint:
    state = memory.peak = memory.live
    loss = _errors(layout, config, shape).mean()
    kept = memory.live - state
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    passes = memory.peak
    layout.sum_gradients()
    # On a GPU AdamW takes the roots of all second moments at once (foreach).
    roots = sum(weight.nbytes for weight in layout.weights.values())
    return Footprint(state, kept, passes, memory.peak, state + roots)


def _errors(layout: Layout, config: TrainConfig, shape: Shape) -> torch.Tensor:
    """As `train.step.losses.losses` makes them, [B]."""
    bundle, bucket = layout.bundle, shape.bucket
    size = (shape.batch, 3, bucket.frames, bucket.height, bucket.width)
    with torch.no_grad():
        clean = bundle.tokenizer.encode(torch.empty(size, dtype=torch.uint8))
    noise, inputs, targets = (torch.empty_like(clean) for _ in range(3))
    del clean, noise
    with torch.autocast(_FAKE.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        context, mask = _text(bundle, config, shape.batch)
        asked = Question([inputs], [targets], torch.empty(shape.batch), context, mask, packed=False)
        return layout.errors(bundle.dit, asked)


def _text(bundle: Bundle, config: TrainConfig, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The longest captions."""
    length = config.text.max_text_tokens
    if isinstance(config.text, HashedTextConfig):
        context, mask = bundle.text([" ".join(f"word{number}" for number in range(length))] * samples)
        return context, mask
    rows = length + bool(bundle.text.pooled_width)
    return torch.empty(samples, rows, bundle.text.width), torch.ones(samples, rows, dtype=torch.bool)


@contextmanager
def _world(ranks: int) -> Iterator[World]:
    """Rank 0 of so many, whose collectives do nothing."""
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
    """Makes the groups that a layout asks for: they are made of numbers, and tensors are without from here on."""
    if grid.world.size == 1:
        return
    _ = grid.weights["dp_replicate", "dp_shard"]
    for dimensions in (DATA, CONTEXT, SUMMED, ("dp_shard", *CONTEXT), ("dp_replicate",), ("tp",), ("pp",)):
        grid.along(*dimensions)
    if grid.mesh.degree(CONTEXT) > 1:
        _ = grid.context
