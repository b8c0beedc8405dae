"""Layouts of a number of GPUs in the order of their expected time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine, VideoModel
from reelweave.pipelines.plans.advisor.simulate import Expected, Layout, expect_layout


def advise(
    model: VideoModel,
    one_gpu: OneGpu,
    machine: SamplingMachine,
    approximate: bool = True,
    cache_hits: float = 0.0,
) -> Sequence[Expected]:
    """Return the layouts that use all GPUs and fit, the fastest first.

    Args:
        model: model and video.
        one_gpu: seconds of one GPU.
        machine: GPUs and links.
        approximate: include Latent Parallelism.
        cache_hits: also show exact layouts with a cache that answers this share of evaluations; 0: no cache.

    Raises:
        UsageError: none fits the memory or the shape.
    """
    chosen = list(layouts(model, machine, approximate))
    if cache_hits:
        chosen += [replace(layout, cache_hits=cache_hits) for layout in chosen if layout.lp == 1]
    rows = [expect_layout(model, one_gpu, machine, layout) for layout in chosen]
    limit = machine.memory_bytes
    fitting = [row for row in rows if limit is None or row.memory_bytes <= limit]
    if not fitting:
        smallest = (
            f"; the least needs {min(row.memory_bytes for row in rows) / 2**30:.1f} GiB" if rows else ""
        )
        raise UsageError(
            f"no layout of {machine.gpus} GPUs fits {model.name}{smallest}: take other GPUs, or shard its weights"
        )
    return sorted(fitting, key=lambda row: row.seconds)


def layouts(model: VideoModel, machine: SamplingMachine, approximate: bool) -> Iterator[Layout]:
    """Yield the layouts of all GPUs: Ulysses divides the heads and stays in a node, passes are shared by 2 or all."""
    for cfg in _divisors(machine.gpus):
        if cfg > model.passes:
            continue
        for lp in _divisors(machine.gpus // cfg):
            if lp > 1 and (not approximate or sum(n >= lp for n in model.grid) < 2):
                continue
            context = machine.gpus // cfg // lp
            if model.spatial_temporal:
                yield Layout(cfg, lp=lp, dsp=context)
                if context > 1 and lp == 1:
                    yield Layout(cfg, scalefusion=context)
                if 1 < context <= machine.gpus_per_node and model.heads % context == 0:
                    yield Layout(cfg, context, lp=lp)
                continue
            for ulysses in _divisors(context):
                if model.heads % ulysses or ulysses > machine.gpus_per_node:
                    continue
                ring = context // ulysses
                if context <= model.tokens // max(1, lp):
                    yield Layout(cfg, ulysses, ring, lp)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
