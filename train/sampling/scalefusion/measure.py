"""Measured costs of an ST-DiT's layers and exchanges, for the simulation that chooses the numbers of slices."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import tokens
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.layers import SlicedLayers, layer_kind
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import DSP, KINDS, LayerKind, Slicing
from reelweave.train.sampling.scalefusion.simulate import LayerCosts, choose


class MeasuredScaleFusion:
    """`ModelRunner` by ScaleFusion, which measures and chooses its numbers at the first pass of each size.

    Last bits depend on the numbers: measured ones may differ from run to run, given ones do not.

    Args:
        dit: model, replicated on all ranks.
        group: the ranks.
        sharing: number of adjacent ranks that share a link.

    Attributes:
        chosen: numbers by shape of the latents.

    Raises:
        UsageError: as `ScaleFusion`.
    """

    def __init__(self, dit: Denoiser, group: dist.ProcessGroup, sharing: int = 1) -> None:
        self._runner, self._sharing = ScaleFusion(dit, group, DSP), sharing
        self.chosen: dict[torch.Size, Slicing] = {}

    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        runner, shape = self._runner, x_BCTHW.shape
        if shape not in self.chosen:
            costs = measure_costs(runner, x_BCTHW, timestep_input_B, conditions, self._sharing)
            T, H, W = runner.dit.grid(shape[2:])
            ranks, pairs = dist.get_world_size(runner.group), len(runner.dit.repeated())
            self.chosen[shape] = choose(T, H * W, ranks, pairs, costs)[0]
        sliced = ScaleFusion(runner.dit, runner.group, self.chosen[shape], runner.exchanges)
        return sliced(x_BCTHW, timestep_input_B, conditions, window)


@torch.no_grad()
def measure_costs(
    runner: ScaleFusion,
    x_BCTHW: torch.Tensor,
    timestep_input_B: torch.Tensor,
    conditions: Conditions,
    sharing: int = 1,
    repeats: int = 5,
) -> LayerCosts:
    """Measure the first block's layers, whole and halved, and exchanges of two sizes; a collective.

    Times are medians of ``repeats``, and of all ranks the longest, so that all ranks choose alike.

    Args:
        runner: the model on its ranks, with any numbers.
        x_BCTHW: latents of the size to sample.
        timestep_input_B: timestep input.
        conditions: text.
        sharing: number of adjacent ranks that share a link.
        repeats: runs of each measurement, after one that warms up.
    """
    model_inputs = (x_BCTHW, timestep_input_B, conditions)
    full = runner.layers(*model_inputs, DSP)
    frames, positions = full.division.frames.cells.tokens, full.division.positions.cells.tokens
    halved = runner.layers(*model_inputs, Slicing(min(2, frames), min(2, positions), 0, 0))
    values_BLV = tokens(x_BCTHW, runner.dit.patch)[:, :1]
    token_BD = runner.dit.embed(values_BLV)[:, 0]
    # The first layer of a block comes first.
    seconds = [
        _seconds(partial(_compute, layers, layer, token_BD), token_BD.device, repeats)
        for layers in (full, halved)
        for layer in (0, 1)
    ]
    ranks = dist.get_world_size(runner.group)
    rows = 1 + max(1, full.division.layer_tokens("spatial", 0) // ranks)
    seconds += [
        _seconds(partial(_exchange, runner, token_BD, count), token_BD.device, repeats) for count in (rows, 1)
    ]
    longest = torch.tensor(seconds, dtype=torch.float64, device=token_BD.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX, group=runner.group)
    *layer_s, large_s, small_s = longest.tolist()
    token_s: dict[LayerKind, float] = {}
    slice_s = 0.0
    for index, kind in enumerate(KINDS):
        (more, fewer), (first_s, second_s) = (
            [_slice_tokens(layers.division, kind) for layers in (full, halved)],
            layer_s[index::2],
        )
        slower = more > fewer and first_s > second_s
        token_s[kind] = (first_s - second_s) / (more - fewer) if slower else first_s / more
        slice_s = max(slice_s, first_s - token_s[kind] * more)
    token_bytes = token_BD.nbytes
    byte_s = max(0.0, large_s - small_s) / ((rows - 1) * max(1, ranks - 1) * token_bytes)
    return LayerCosts(token_s, slice_s, byte_s, small_s, token_bytes, sharing)


def _slice_tokens(division: TokenDivision, kind: LayerKind) -> int:
    """Return the tokens of the first slice on the rank with the most."""
    return max(division.cut(kind).counts(0)) * division.whole(kind).cells.tokens


def _compute(layers: SlicedLayers, layer: int, token_BD: torch.Tensor) -> None:
    kind = layer_kind(layer)
    cut, full = layers.division.cut(kind), layers.division.whole(kind)
    sizes = (full.cells.tokens, cut.counts(0)[layers.rank])
    layers.compute(layer, 0, token_BD.expand(*sizes, *token_BD.shape).contiguous())


def _exchange(runner: ScaleFusion, token_BD: torch.Tensor, rows: int) -> None:
    """Send so many rows to each rank, and wait."""
    counts = [rows] * dist.get_world_size(runner.group)
    sent = token_BD.expand(sum(counts), *token_BD.shape).contiguous()
    runner.exchanges.start(sent, torch.empty_like(sent), counts, counts)()


def _seconds(action: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Return the median time of an action after a first one."""
    took = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - began)
    return median(took[1:])
