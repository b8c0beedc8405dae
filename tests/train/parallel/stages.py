"""Rank functions: one step of a pipeline, compared to the same step of a whole model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.plan.position import Position
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import DiTConfig, MMDiTConfig, ModelConfig, STDiTConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.step.losses import Losses, losses
from tests.train.clips import clip, tiny_config
from tests.train.comparison import relative_errors

SHAPES = (Bucket(5, 16, 16), Bucket(1, 16, 24), Bucket(3, 24, 16))
MODELS: dict[str, ModelConfig] = {
    "dit": DiTConfig(hidden=24, heads=2, layers=4),
    "st_dit": STDiTConfig(hidden=24, heads=2, layers=4),
    "mmdit": MMDiTConfig(hidden=24, heads=2, layers=4, adaln_rank=8, absolute_positions=True),
}


def batches(sizes: Sequence[int], packed: bool = False) -> list[Microbatch | Pack]:
    """A step's microbatches of so many samples, each of another shape; or every other one a pack of several shapes."""
    made, first = [], 0
    for slot, size in enumerate(sizes):
        numbers = range(first, first + size)
        first += size
        common: dict[str, Any] = {
            "keys": tuple(f"clip{number}" for number in numbers),
            "captions": tuple("a wave " + "going " * (number % 4) for number in numbers),
            "passes": (0,) * size,
            "step": 0,
            "epoch": 0,
            "weight": size / sum(sizes),
            "step_samples": sum(sizes),
            "mean_samples": float(sum(sizes)),
            "slot": slot,
            "slots": len(sizes),
            "after": Position(1, 0, ()),
        }
        if packed and slot % 2:
            buckets = tuple(SHAPES[number % 3] for number in numbers)
            videos = tuple(map(clip, numbers, buckets))
            made.append(Pack(buckets=buckets, lengths=tuple(map(tokens, buckets)), videos=videos, **common))
        else:
            bucket = SHAPES[slot % 3]
            video_BCTHW = torch.stack([clip(number, bucket) for number in numbers])
            made.append(Microbatch(bucket=bucket, length=tokens(bucket), video_BCTHW=video_BCTHW, **common))
    return made


def tokens(bucket: Bucket) -> int:
    return math.prod((bucket.frames, bucket.height, bucket.width))


def config_of(model: str, lora: bool = False, dtype: str = "float32", **parallel: Any) -> TrainConfig:
    changes = {
        "model": MODELS[model],
        "lora": LoraConfig(rank=2) if lora else None,
        "dtype": dtype,
        "parallel": ParallelConfig(**parallel),
    }
    return tiny_config().model_copy(update=changes)


def stir_(weights: dict[str, torch.Tensor]) -> None:
    """Values that depend on a weight's name alone, so that nothing is the zero that it begins with."""
    for name, weight in weights.items():
        draw = torch.Generator().manual_seed(sum(map(ord, name)))
        with torch.no_grad():
            weight.add_(0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64).to(weight))


close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-13)


def share(batch: Microbatch | Pack, own: Losses) -> torch.Tensor:
    """What a microbatch adds to the step's mean."""
    return batch.weight * own.each.mean()


def same_step(
    model: str, sizes: list[int], schedule: str = "1f1b", packed: bool = False, lora: bool = False
) -> None:
    """Losses and gradients of a step, and losses without gradients, are those of a whole model."""
    torch.set_default_dtype(torch.float64)
    with join("cpu") as world:
        config, step = config_of(model, lora, pp=world.size, pp_schedule=schedule), batches(sizes, packed)
        whole = Bundle(config)
        stir_(whole.trained_weights())
        expected = []
        for batch in step:
            expected.append(losses(whole, config, batch, world.device))
            share(batch, expected[-1]).backward()
        layout = lay_out(config.step, Ranks.of(config.parallel, world))
        assert layout.count == sum(weight.numel() for weight in whole.trained_weights().values())
        assert held(layout.bundle) < 0.75 * held(whole)
        stir_(layout.weights)
        layout.zero_gradients()
        told: list[Losses] = []

        def weigh(batch: Microbatch | Pack, own: Losses) -> torch.Tensor:
            told.append(own)
            return share(batch, own)

        found = list(layout.passes(step, weigh, StepClock(world)))
        layout.sum_gradients()
        assert [batch for batch, _ in found] == step
        for own in (told, [own for _, own in found]):
            for one, other in zip(own, expected, strict=True):
                close(one.each, other.each)
                assert (one.work, one.video_tokens) == (other.work, other.video_tokens)
        wanted = whole.trained_weights()
        errors = relative_errors(
            {name: weight.grad for name, weight in layout.weights.items()},
            {name: wanted[name].grad for name in layout.weights},
        )
        assert {name: error for name, error in errors.items() if not error <= 1e-10} == {}
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in wanted.values()]).item()
        assert math.isclose(layout.norm().item(), norm, rel_tol=1e-10)
        names = {name for said in world.gather_text("\n".join(layout.weights)) for name in said.split("\n")}
        assert names == wanted.keys()
        with torch.no_grad():
            for batch in step:
                looked = losses(layout.bundle, config, batch, world.device, 0.3, layout.errors)
                close(looked.each, losses(whole, config, batch, world.device, 0.3).each)


def held(bundle: Bundle) -> int:
    """Values of a denoiser that have memory."""
    return sum(parameter.numel() for parameter in bundle.dit.parameters() if not parameter.is_meta)


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """The most bytes that autograd kept at once for backwards, but for those of weights."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__(self._pack, lambda kept: kept.tensor)
        self.weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self.now = self.most = 0

    def _pack(self, tensor: torch.Tensor) -> "_Kept":
        counts = tensor.untyped_storage().data_ptr() not in self.weights
        return _Kept(self, tensor, tensor.nbytes if counts else 0)


class _Kept:
    def __init__(self, saved: Saved, tensor: torch.Tensor, bytes_: int) -> None:
        self.saved, self.tensor, self.bytes = saved, tensor, bytes_
        saved.now += self.bytes
        saved.most = max(saved.most, saved.now)

    def __del__(self) -> None:
        self.saved.now -= self.bytes


def kept(schedule: str, microbatches: int, times: list[int]) -> None:
    """A stage keeps so many times the activations of one of its microbatches."""
    with join("cpu") as world:
        config = config_of("dit", pp=world.size, pp_schedule=schedule)
        layout = lay_out(config.step, Ranks.of(config.parallel, world))
        [batch] = batches([2])

        def most(count: int) -> int:
            layout.zero_gradients()
            step = [replace(batch, slot=slot, slots=count, weight=1 / count) for slot in range(count)]
            saved = Saved(layout.weights.values())
            with saved:
                list(layout.passes(step, share, StepClock(world)))
            return saved.most

        one = most(1)
        assert most(microbatches) == times[world.rank] * one, (most(microbatches), one)


class Casts(TorchDispatchMode):
    """How often each of these weights is cast."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.counts = {weight.untyped_storage().data_ptr(): 0 for weight in weights}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            place = args[0].untyped_storage().data_ptr()
            if place in self.counts:
                self.counts[place] += 1
        return func(*args, **(kwargs or {}))


def half() -> None:
    """In bfloat16 a step has the losses of a whole model in every bit, and casts no weight twice."""
    with join("cpu") as world:
        config = config_of("dit", dtype="bfloat16", pp=world.size, activation_checkpointing="selective")
        step, whole, layout = (
            batches([1, 2, 1]),
            Bundle(config),
            lay_out(config.step, Ranks.of(config.parallel, world)),
        )
        casts = Casts(layout.weights.values())
        with casts:
            found = list(layout.passes(step, share, StepClock(world)))
        for batch, own in found:
            assert torch.equal(own.each, losses(whole, config, batch, world.device).each)
        assert set(casts.counts.values()) == {0, 1}
