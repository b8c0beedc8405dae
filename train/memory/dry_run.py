"""Dry run of a training step that predicts its GPU memory without a GPU.

Rank 0 of any number of ranks is laid out and runs steps with the training code. Tensors hold no data, and
collectives send nothing. Models, layouts and checkpointing policies are thus those of the run. Fused
operators are assumed to allocate only their outputs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import StepConfig
from reelweave.train.distributed.world import World
from reelweave.train.memory.equal_blocks import cut_runs, equal_runs
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.memory.phases import Footprint, StepPhases, extrapolate_blocks
from reelweave.train.memory.shapes import StepShape
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.tokenizer import LatentSizes
from reelweave.train.parallel.dit import parallelize
from reelweave.train.parallel.layout import layout_of
from reelweave.train.parallel.layouts.parallel_model import ParallelModel
from reelweave.train.parallel.layouts.zero1 import ZeRO1
from reelweave.train.parallel.mesh import DATA, SUMMED, Mesh, Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.parallel.text_encoder import place_text_, placement
from reelweave.train.step.adamw import CompactAdamW
from reelweave.train.step.ema import Ema
from reelweave.train.step.squared_errors import DenoisingInputs

_FAKE = torch.device("cpu")
_NODE = 8  # GPUs
_FEW = 3  # blocks: with fewer, FSDP gathers not all that it gathers at once


def dry_run(
    step: StepConfig,
    shapes: Sequence[StepShape],
    ranks: int = 1,
    encoded: bool = False,
    overlapped: bool = True,
) -> list[Footprint]:
    """Predict the memory of a step with one microbatch of each shape per data-parallel rank, uncompiled.

    Excluded are workspaces of kernels, and reserves of CUDA and its libraries. Nodes have 8 GPUs.

    Args:
        step: configuration of the step.
        shapes: shapes of microbatches.
        ranks: number of ranks.
        encoded: True if latents are stored, so that the VAE and its weights are excluded.
        overlapped: False if gradients are summed behind the last backward of a step only, as by cascades.

    Raises:
        UsageError: the layout is invalid, or the dry run does not support it. Not supported are
            checkpointing by the compiler, pipeline stages, and models that depend on values.
    """
    # Refuse what cannot be predicted.
    parallel = step.layout.parallel
    if parallel.activation_checkpointing == "memory_budget":
        raise UsageError(
            "parallel.activation_checkpointing=memory_budget is left to the compiler, so its memory is not predicted;"
            " take none, selective or full"
        )
    if parallel.pp > 1:
        raise UsageError(
            "parallel.pp=1 alone is predicted: how many microbatches a stage keeps depends on the step"
        )
    parallel = parallel.model_copy(update={"compile": False, "schedule": "static"})
    # The layout as on so many ranks, of which this process is one; tensors have no content.
    mesh = Mesh.of(parallel, ranks)
    kind = layout_of(parallel, mesh)
    with _world(ranks) as world:
        grid = Ranks(mesh, world)
        grid.node_size = min(ranks, _NODE)
        run = _DryRun(step.with_parallel(parallel), kind, grid, encoded, overlapped)
        try:
            return run.footprints(shapes)
        except DataDependentOutputException as error:
            raise UsageError(f"this model cannot be rehearsed: it looks at values ({error})") from error


def communicator_bytes(step: StepConfig, ranks: int) -> int:
    """Return the memory of the communicators of a layout, at most (`reelweave.train.distributed.groups`).

    Args:
        step: configuration of the step.
        ranks: number of ranks.

    Raises:
        UsageError: the degrees do not fit the ranks.
    """
    if ranks == 1:
        return 0
    mesh = Mesh.of(step.layout.parallel, ranks)
    with _world(ranks) as world:
        grid = Ranks(mesh, world)
        grid.node_size = min(ranks, _NODE)
        _meet(grid)
        return grid.groups.most_bytes


class _DryRun:
    """Steps of a run without data, on the whole model or on a few of its equal blocks."""

    def __init__(
        self, step: StepConfig, kind: type[ParallelModel], grid: Ranks, encoded: bool, overlapped: bool
    ) -> None:
        self._config, self._kind, self._grid, self._encoded = step, kind, grid, encoded
        self._overlapped = overlapped

    def footprints(self, shapes: Sequence[StepShape]) -> list[Footprint]:
        """Return the footprint of each shape."""
        lengths = equal_runs(self._bundle(encodes=False).dit)
        long = [index for index, length in enumerate(lengths) if length > _FEW + 3]
        # Copies of ZeRO-1's buckets grow with the model up to a bound, which few blocks do not show.
        if not long or self._kind is ZeRO1:
            return [phases.footprint() for phases in self._measure_shapes(shapes, lengths)]
        few = [_FEW if index in long else length for index, length in enumerate(lengths)]
        base = self._measure_shapes(shapes, few, encodes=False)
        longer = {
            index: [
                self._measure_shapes(shapes, [*few[:index], _FEW + more, *few[index + 1 :]], encodes=False)
                for more in (1, 2)
            ]
            for index in long
        }
        footprints, encodings = [], self._encodings(shapes)
        for shape_index, shape in enumerate(shapes):
            runs = [
                (lengths[index] - _FEW, longer[index][0][shape_index], longer[index][1][shape_index])
                for index in long
            ]
            step_phases = extrapolate_blocks(base[shape_index], runs)
            if step_phases is None:
                [found_whole] = self._measure_shapes([shape], lengths)
                footprints.append(found_whole.footprint())
            else:
                footprints.append(step_phases.footprint(*encodings[shape_index]))
        return footprints

    def _bundle(self, encodes: bool = True) -> Bundle:
        bundle = Bundle(self._config.modules, meta=True, unread=True)
        if self._encoded or not encodes:
            bundle.tokenizer = LatentSizes(bundle.tokenizer)
        return bundle

    def _measure_shapes(
        self, shapes: Sequence[StepShape], lengths: Sequence[int], encodes: bool = True
    ) -> list[StepPhases]:
        """Return what a model with some of its equal blocks takes."""
        bundle, step, grid = self._bundle(encodes), self._config, self._grid
        layout_config, parallel = step.layout, step.layout.parallel
        cut_runs(bundle.dit, lengths)
        parallelize(bundle.dit, grid, layout_config)
        _meet(grid)
        offloads = placement(parallel, grid.mesh) == "offload"
        if not offloads:
            place_text_(bundle.text, parallel, grid)
        with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as counted:
            if offloads:
                # Weights on the host are not counted.
                bundle.text.to_empty(device=_FAKE)
                place_text_(bundle.text, parallel, grid)
            memory = counted.enter_context(LiveMemory())
            layout = self._kind(bundle.to_empty(device=_FAKE), layout_config, grid)
            average = Ema(step.ema, layout.weights)
            caption = _longest_caption(step.modules.text.max_text_tokens)
            phases = [_step(layout, caption, shape, memory, self._overlapped) for shape in shapes]
            del average
            return phases

    def _encodings(self, shapes: Sequence[StepShape]) -> list[tuple[int, int]]:
        """Return the bytes of the tokenizer and those that it adds while it encodes each shape."""
        encodings, tokenizer = [], self._bundle().tokenizer
        with FakeTensorMode(allow_non_fake_inputs=True), LiveMemory() as memory:
            tokenizer = tokenizer.to_empty(device=_FAKE)
            weights = memory.live
            for shape in shapes:
                memory.peak = weights
                with torch.no_grad():
                    tokenizer.encode(torch.empty(_pixels(shape), dtype=torch.uint8))
                encodings.append((weights, memory.peak - weights))
        return encodings


def _step(
    layout: ParallelModel, caption: str, shape: StepShape, memory: LiveMemory, overlapped: bool
) -> StepPhases:
    state = memory.live
    # Gradients of an earlier microbatch are there already.
    if layout.accumulates:
        layout.before_backward(last=False)
        _errors(layout, caption, shape, memory)[0].mean().backward()  # type: ignore[no-untyped-call]  # torch's own
    # Forward: what it keeps for the backward, and its peak.
    before = memory.peak = memory.live
    errors, inside, text = _errors(layout, caption, shape, memory)
    loss = errors.mean()
    del errors
    kept_bytes, forward = memory.live - before, memory.peak
    memory.peak = memory.live
    # Backward, then the sums over ranks.
    layout.before_backward(last=overlapped)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    backward, memory.peak = memory.peak, memory.live
    layout.sum_gradients()
    return StepPhases(
        state=state,
        held=before - state,
        inside=inside - before,
        kept=kept_bytes,
        text=text,
        forward=forward,
        backward=backward,
        sums=memory.peak,
        update=state + _updating(layout),
        ahead=math.prod(_pixels(shape)),
    )


def _updating(layout: ParallelModel) -> int:
    """Return the bytes that the optimizer's update adds."""
    if isinstance(layout.optimizer, CompactAdamW):
        return layout.optimizer.update_bytes
    # On a GPU AdamW allocates the roots of all second moments at once (foreach).
    return sum(weight.nbytes for weight in layout.weights.values())


def _errors(
    layout: ParallelModel, caption: str, shape: StepShape, memory: LiveMemory
) -> tuple[torch.Tensor, int, int]:
    """Compute squared errors as `reelweave.train.step.losses.losses` does.

    Returns:
        The errors, [B], live bytes at the end of the forward, and the peak while the text is encoded.
    """
    bundle = layout.bundle
    with torch.no_grad():
        clean = bundle.tokenizer.encode(torch.empty(_pixels(shape), dtype=torch.uint8))
    noise, targets = torch.empty_like(clean), torch.empty_like(clean)
    channels = clean.shape[1] + bundle.dit.condition_channels
    inputs = clean.new_empty((shape.batch, channels, *clean.shape[2:]))
    del clean, noise
    with torch.autocast(_FAKE.type, torch.bfloat16, enabled=layout.dtype == "bfloat16"):
        before, memory.peak = memory.peak, memory.live
        context, mask = bundle.text([caption] * shape.batch)
        text, memory.peak = memory.peak, max(before, memory.live)
        denoising_inputs = DenoisingInputs(
            [inputs], [targets], torch.empty(shape.batch), context, mask, packed=False
        )
        errors = layout.errors(bundle.dit, denoising_inputs)
        return errors, memory.live, text


def _pixels(shape: StepShape) -> tuple[int, ...]:
    """Return the shape of a microbatch's pixels."""
    bucket = shape.bucket
    return shape.batch, 3, bucket.frames, bucket.height, bucket.width


def _longest_caption(tokens: int) -> str:
    return " ".join(f"word{index}" for index in range(tokens))


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
    _ = grid.weights["dp_replicate", "dp_shard"], grid.node
    for dimensions in (DATA, CONTEXT, SUMMED, ("dp_shard", *CONTEXT), ("dp_replicate",), ("tp",), ("pp",)):
        grid.along(*dimensions)
    if grid.mesh.degree(CONTEXT) > 1:
        _ = grid.context
