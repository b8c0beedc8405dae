"""Rank functions: short runs by cascades, and what their streams hold."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from reelweave.loader.batch import Batch, Pack, UpcomingMicrobatch
from reelweave.loader.errors import RunError
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure import timings
from reelweave.train.models.dit import DiT
from reelweave.train.models.encoders.text import build_text_encoder
from reelweave.train.models.encoders.tokenizer import PatchTransform
from tests.train.clips import BUCKETS, ClipStream, tiny_config
from tests.train.parallel.layouts import SAMPLES

IMPORTED_FIRST = ("tests.train.cascade.training.planned",)
STEPS = 4
# Samples of each microbatch of each of four ranks.
SPLITS = ((1, 1, 1), (2,), (1, 1), (1,))
DIT = {"kind": "dit", "hidden": 24, "heads": 4, "layers": 2}
MMDIT = {"kind": "mmdit", "hidden": 24, "heads": 4, "layers": 2, "adaln_rank": 8}
ST_DIT = {"kind": "st_dit", "hidden": 24, "heads": 4, "layers": 2, "full_attention": True}
SHARDED = {"dp_replicate": "rest", "dp_shard": 2}
ZERO = {"dp_replicate": 1, "dp_shard": "rest", "shard": "optimizer"}

CASES: dict[str, dict[str, Any]] = {
    "all degrees": {"model": DIT, "cascade": {"degrees": [1, 2, 3, 4]}},
    "a rank without a DiT": {"model": DIT, "cascade": {"degrees": [3]}, "denominator": "epoch"},
    "zero packs": {
        "model": MMDIT,
        "parallel": ZERO,
        "cascade": {"degrees": [2, 4]},
        "denominator": "step_tokens",
    },
    "st_dit by representatives": {
        "model": ST_DIT,
        "cascade": {"degrees": [2], "gradient_sum": "representatives"},
    },
    "stored latents": {"model": DIT, "cascade": {"degrees": [2], "handoff_mib": 0.5}},
    "frozen text, resumed": {"model": DIT, "then": "static"},
    "stored text": {"model": DIT, "cascade": {"degrees": [1, 2]}},
    "corrected": {"model": DIT, "cascade": {"correction": {"evidence": 1, "slow": 1.01}}},
    "slow rank": {
        "model": DIT,
        "cascade": {"correction": {"evidence": 1, "slow": 3.0, "reorders": 1}, "timeline_every_steps": STEPS},
    },
    "sharded mmdit": {"model": MMDIT, "parallel": SHARDED, "denominator": "step_tokens", "then": "static"},
    "sharded st_dit packs": {"model": ST_DIT, "parallel": SHARDED | {"activation_checkpointing": "full"}},
    "sharded text": {"model": DIT, "parallel": SHARDED, "cascade": {"degrees": [1, 2, 4]}},
    "static, then sharded": {"model": DIT, "parallel": SHARDED, "ema": {}, "then": "cascade"},
}
"""What of a configuration is not the tiny one's; `then`: the schedule of its last step, behind the other's steps."""


def config_of(case: dict[str, Any], schedule: str, text: dict[str, Any] | None = None) -> TrainConfig:
    """The configuration of a case."""
    own = {name: value for name, value in case.items() if name != "then"}
    if schedule == "static":
        own.pop("parallel", None)
        own.pop("cascade", None)
    own["parallel"] = own.get("parallel", {}) | {"schedule": schedule}
    base = tiny_config(STEPS, every_steps=3).model_dump(exclude={"model", "parallel"})
    base["optimizer"]["grad_clip"] = 0.1
    base["checkpoint"]["background"] = False  # it is there when a run breaks off
    if text:
        own["text"] = text
    return TrainConfig.model_validate(base | own)


class Packed(ClipStream):
    """The same samples as packs."""

    def microbatch(self, step: int, slot: int = 0) -> Batch:
        return packed(super().microbatch(step, slot))


def packed(batch: Any) -> Pack:
    """The samples of a microbatch as a pack."""
    common = {
        name: getattr(batch, name)
        for name in (
            *("keys", "captions", "passes", "step", "epoch", "weight", "step_samples", "mean_samples"),
            *("slot", "slots", "after"),
        )
    }
    count = len(batch.keys)
    return Pack(
        buckets=(batch.bucket,) * count,
        lengths=(batch.length,) * count,
        videos=tuple(batch.video_BCTHW),
        **common,
    )


class Latents(ClipStream):
    """The same samples as latents."""

    def microbatch(self, step: int, slot: int = 0) -> Batch:
        batch = super().microbatch(step, slot)
        latents_BCTHW = PatchTransform(tiny_config().tokenizer).encode(batch.video_BCTHW)
        nothing = torch.empty(len(batch.keys), 3, 0, 0, 0, dtype=torch.uint8)
        return replace(batch, latents_BCTHW=latents_BCTHW, video_BCTHW=nothing)


class Contexts(Latents):
    """The same samples as latents and contexts."""

    text: Any

    def microbatch(self, step: int, slot: int = 0) -> Batch:
        batch = super().microbatch(step, slot)
        context_BMD, mask_BM = self.text(batch.captions)
        pairs = zip(context_BMD, mask_BM, strict=True)
        return replace(batch, contexts=tuple(context_MD[mask_M] for context_MD, mask_M in pairs))


class Foreseen(ClipStream):
    """Every other rank knows of each second step what comes."""

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        if (self.first + self.position) % 2:
            return None
        bucket = BUCKETS[self.position % 2]
        tokens = bucket.frames * bucket.height * bucket.width
        sizes = [size for sizes in SPLITS for size in sizes]
        return [
            UpcomingMicrobatch((bucket,) * size, (tokens,) * size, (True,) * size, False) for size in sizes
        ]


class ForeseenLatents(Foreseen, Latents):
    """Nothing is left to encode, so that whoever is slow with DiTs is slow with all that it runs."""

    def upcoming(self) -> list[UpcomingMicrobatch] | None:
        found = super().upcoming()
        return found and [one._replace(pixels=(False,) * len(one.pixels)) for one in found]


STREAMS = {
    "corrected": Foreseen,
    "slow rank": ForeseenLatents,
    "zero packs": Packed,
    "sharded st_dit packs": Packed,
    "stored latents": Latents,
    "stored text": Contexts,
}


def train_cases(out: str, text: dict[str, Any], names: list[str]) -> None:
    """Trains all cases, one after the other, on the ranks of a world."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for name in names:
            train_case(Path(out) / name, name, text, rank, world_size)


def train_case(out: Path, name: str, text: dict[str, Any], rank: int = 0, world_size: int = 1) -> None:
    """Trains a case: by cascades on several ranks, statically on one."""
    case, reads = CASES[name], "text" in name
    torch.set_default_dtype(torch.float32 if reads else torch.float64)
    then = case.get("then") if world_size > 1 else None
    first = "static" if then == "cascade" or world_size == 1 else "cascade"
    config = config_of(case, first, text if reads else None)
    kind = STREAMS.get(name, ClipStream) if world_size > 1 else ClipStream
    if kind is Contexts:
        Contexts.text = build_text_encoder(config.text)
    stream = kind(samples=SAMPLES)
    if world_size > 1:
        stream = kind(sizes=SPLITS[rank], first=sum(map(sum, SPLITS[:rank])), samples=SAMPLES)
    stream.mean_samples = SAMPLES / 2
    if name == "slow rank" and world_size > 1:
        with slow_denoisers(1.5 if rank == 1 else 0.25):
            Trainer(config, stream, out).run()
        return
    if then:

        class Cut(kind):
            """Ends behind three steps."""

            def __iter__(self):
                return itertools.takewhile(lambda batch: batch.step < 3, super().__iter__())

        whole, stream.__class__ = stream.__class__, Cut
        try:
            Trainer(config, stream, out).run()
        except RunError as error:
            print(error)
        stream.__class__ = whole
        config = config_of(case, then, text if reads else None)
    Trainer(config, stream, out).run()


class WorkClock:
    """Seconds for which this process has worked, and waits that are only counted, whatever other processes do."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def perf_counter(self) -> float:
        """Stands for the clock of the machine."""
        return time.process_time() + self.waited_s


@contextmanager
def slow_denoisers(wait_s: float) -> Iterator[None]:
    """Each denoiser of this process takes so much longer, by a clock of its work."""
    clock = WorkClock()

    def wait(module: nn.Module, _: object) -> None:
        if isinstance(module, DiT):
            clock.waited_s += wait_s

    hook = register_module_forward_pre_hook(wait)
    timings.time = clock
    try:
        yield
    finally:
        timings.time = time
        hook.remove()


def command(config: str, *changes: str) -> int:
    """``reelweave train``."""
    from reelweave.pipelines.cli import main

    return main(["train", "--config", config, *(word for change in changes for word in ("--set", change))])


def killed(out: str, victim: int, at_step: int) -> None:
    """Trains by cascades; one rank kills itself when it reads a step, counted from 0; -1: none does."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Stream(ClipStream):
        """Ends its process."""

        def microbatch(self, step: int, slot: int = 0) -> Batch:
            if rank == victim and step == at_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().microbatch(step, slot)

    Trainer(config_of(CASES["all degrees"], "cascade"), Stream(rank, world_size), Path(out)).run()
