"""Layout that the advisor chooses where none is given: all ranks make each video together, exactly."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans.advisor.advise import advise
from reelweave.pipelines.plans.advisor.of_run import video_model
from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine
from reelweave.pipelines.plans.advisor.simulate import Expected
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.layout import together
from reelweave.train.sampling.prediction.guidance import pass_weights
from reelweave.train.sampling.trained.load import Trained

_ASSUMED_FLOPS_PER_S = 400e12
"""Speed of a GPU. Beside the links that are assumed, too, it orders layouts; no time is told by it."""

_WORTH = 0.95
"""Slices of an ST-DiT are taken where they take less than this share of the time of whole layers."""


class Advised(NamedTuple):
    """Layout, and where it comes from.

    Attributes:
        degrees: the layout.
        reason: sentence that names it, or why the advisor found none.
        found: True if the advisor chose it.
    """

    degrees: SampleLayoutConfig
    reason: str
    found: bool


def advise_layout(world_size: int, trained: Trained, configs: Sequence[SampleConfig]) -> Advised:
    """Return the exact layout with the shortest expected time; a pure function of shapes, equal on all ranks.

    Args:
        world_size: number of ranks.
        trained: the model.
        configs: videos to make; the largest one is planned, and all fit.
    """
    if world_size == 1:
        return Advised(SampleLayoutConfig(), "one rank", found=True)
    bundle, first = trained.bundle, configs[0]
    weights, _ = pass_weights(first.guidance, first.guidance_2, first.image_guidance)
    by_tokens = _sizes(bundle, configs)
    if not by_tokens:
        return Advised(SampleLayoutConfig(), "no size fits the model", found=True)
    fewest, largest = min(by_tokens), max(by_tokens)
    text_tokens = trained.config.text.max_text_tokens
    try:
        model = video_model(
            trained.checkpoint,
            bundle.dit,
            bundle.tokenizer,
            by_tokens[largest],
            text_tokens,
            len(weights),
            first.total_steps,
        )
        size = bundle.tokenizer.latent_size(by_tokens[largest])
        flops = bundle.dit.flops(size, text_tokens).forward * len(weights) * first.total_steps
        machine = SamplingMachine(gpus=world_size, gpus_per_node=_ranks_of_a_node(world_size))
        rows = advise(model, OneGpu(denoise_s=flops / _ASSUMED_FLOPS_PER_S), machine, approximate=False)
        # A cache watches whole blocks, which slices are not, and slices are those of one size.
        slices = first.cache is None and len(by_tokens) == 1
        chosen = next(row for row in rows if _runs(row, fewest, model.spatial_temporal, slices=False))
        if slices:
            sliced = next(row for row in rows if _runs(row, fewest, model.spatial_temporal, slices=True))
            chosen = sliced if sliced.seconds < _WORTH * chosen.seconds else chosen
    except (UsageError, StopIteration) as error:
        degrees = together(world_size, bundle.dit, len(weights), fewest)
        why = str(error) or f"the smallest video has {fewest} tokens"
        return Advised(
            degrees, f"no exact layout puts all {world_size} ranks to one video: {why}", found=False
        )
    layout = chosen.layout
    degrees = SampleLayoutConfig(
        cfg=layout.cfg,
        ring=layout.ring,
        ulysses=layout.ulysses * layout.dsp * layout.scalefusion,
        scalefusion=chosen.slicing,
    )
    return Advised(degrees, f"the advisor's fastest exact layout: {layout}", found=True)


def _sizes(bundle: Bundle, configs: Sequence[SampleConfig]) -> dict[int, tuple[int, int, int]]:
    """Return sizes of videos by their tokens; the run refuses those that do not fit, and names the video."""
    sizes = {}
    for size in {(config.frames, config.height, config.width) for config in configs}:
        with suppress(UsageError):
            sizes[bundle.dit.tokens(bundle.latent_size(size))] = size
    return sizes


def _runs(row: Expected, tokens: int, spatial_temporal: bool, slices: bool) -> bool:
    """Return whether `reelweave sample` runs a layout: an ST-DiT's heads are exchanged in tests and benchmarks only."""
    layout = row.layout
    if layout.context > tokens or (spatial_temporal and layout.ulysses > 1):
        return False
    return slices or layout.scalefusion == 1


def _ranks_of_a_node(world_size: int) -> int:
    """Return how many ranks share a node: torchrun tells."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local_world_size) if local_world_size.isdecimal() and int(local_world_size) else world_size
