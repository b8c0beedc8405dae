"""Training runs on the emulated accelerator and on the CPU, in a process of their own, and what was found in them."""

import json
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.model import DiTConfig, MMDiTConfig, ModelConfig, STDiTConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.interrupt import interrupts
from reelweave.train.loop.processes import Processes
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.parallel.mesh import Ranks
from tests.train.accelerator import CPU, DEVICE, HostWaits
from tests.train.clips import BUCKETS, ClipStream, clip, tiny_config

STEPS = 3
STEP = "train/loop/steps.py:_train_step"
READERS = ("train/loop/steps.py:_exchange",)  # the step's numbers


DIT = DiTConfig(hidden=24, heads=4, layers=2)


@dataclass(frozen=True)
class Case:
    """A run of three steps of two microbatches.

    Attributes:
        model: architecture.
        packed: microbatches are packs.
        latents: the dataset holds latents.
        contexts: the dataset holds contexts of captions.
        extra: further keys of the run.
    """

    model: ModelConfig = DIT
    packed: bool = False
    latents: bool = False
    contexts: bool = False
    extra: tuple[tuple[str, Any], ...] = ()


ST_DIT = STDiTConfig(hidden=24, heads=4, layers=2, full_attention=True)
MMDIT = MMDiTConfig(hidden=24, heads=4, layers=2, adaln_rank=8)
FRAMES = (("first_frames", FirstFramesConfig(max_latent_frames=2, dropout=0.3)),)
DROPS = {
    name: config(caption_dropout=0.5)
    for name, config in (("flow", FlowConfig), ("edm", EDMConfig), ("ddpm", DDPMConfig))
}
CASES = {
    "dit": Case(),
    "st-dit": Case(ST_DIT),
    "mmdit": Case(MMDIT),
    "dit-pack": Case(packed=True),
    "st-dit-pack": Case(ST_DIT, packed=True),
    "mmdit-pack": Case(MMDIT, packed=True),
    "stored": Case(latents=True, contexts=True, extra=(("objective", DROPS["flow"]),)),
    "stored-pack": Case(packed=True, latents=True, contexts=True, extra=(("objective", DROPS["flow"]),)),
    "first-frames": Case(extra=FRAMES),
    "first-frames-pack": Case(MMDIT, packed=True, extra=FRAMES),
    "edm": Case(extra=(("objective", DROPS["edm"]), ("denominator", "step_tokens"))),
    "ddpm": Case(extra=(("objective", DROPS["ddpm"]), ("ema", EmaConfig()), ("denominator", "epoch"))),
}


class Stream(ClipStream):
    """Two microbatches a step, of clips or of what the dataset holds instead."""

    def __init__(self, case: Case, config: TrainConfig) -> None:
        super().__init__(sizes=(2, 2))
        self._case, self._config = case, config

    def microbatch(self, step: int, slot: int = 0) -> Any:
        batch, case = super().microbatch(step, slot), self._case
        draw = torch.Generator().manual_seed(10 * step + slot)
        if case.contexts:
            width = self._config.text.width
            contexts = tuple(torch.randn(3 + number, width, generator=draw).half() for number in range(2))
            batch = replace(batch, contexts=contexts)
        shape = (12 * 2, batch.bucket.frames // 2 + 1, batch.bucket.height // 2, batch.bucket.width // 2)
        if case.packed:
            return self._pack(batch, draw, shape)
        if case.latents:
            batch = replace(batch, latents_BCTHW=torch.randn(2, *shape, generator=draw).half())
        return batch

    def _pack(self, batch: Microbatch, draw: torch.Generator, shape: tuple[int, ...]) -> Pack:
        kept = {
            name: value
            for name, value in vars(batch).items()
            if name not in ("bucket", "length", "video_BCTHW", "latents_BCTHW")
        }
        buckets = (batch.bucket, BUCKETS[0])
        videos = [clip(number, bucket) for number, bucket in enumerate(buckets)]
        if self._case.latents:
            videos = [torch.randn(shape, generator=draw).half() for _ in buckets]
        return Pack(buckets=buckets, lengths=(1, 1), videos=tuple(videos), **kept)


def run(case: Case, device: torch.device, waits: HostWaits | None) -> list[float]:
    """Train a case; return the losses of its steps."""
    config = tiny_config(STEPS, STEPS).model_copy(update={"model": case.model, **dict(case.extra)})
    stored = None
    if case.latents and case.contexts:
        channels = 3 * 2 * 2 * 2
        stored = StoredEncoders(channels, torch.ones(2, config.text.width))
    world = World(0, 1, device)
    with tempfile.TemporaryDirectory() as folder, waits or nullcontext(), interrupts() as interrupt:
        trainer = Trainer(config, Stream(case, config), Path(folder), stored=stored)
        trainer.run_on(Processes(Ranks.of(config.parallel, world), interrupt))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]


def compare(out: str, names: list[str]) -> None:
    """Write waits and losses of cases as JSON."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.set_num_threads(1)
    found = {}
    for name in names:
        case, waits = CASES[name], HostWaits(STEP, READERS)
        here = run(case, CPU, None)
        with torch.autograd.set_multithreading_enabled(False):
            there = run(case, DEVICE, waits)
        found[name] = {
            "waits": dict(waits.found),
            "reads": dict(waits.reads),
            "sent": waits.sent,
            "cpu": here,
            "emulated": there,
        }
    Path(out).write_text(json.dumps(found | {"checker": _checked()}))


def _checked() -> list[str]:
    """Return the kinds of waits that are noted of operations that wait, and of some that do not."""
    every = HostWaits("", ())
    with every:
        x = torch.ones(3, device=DEVICE)
        for wait in (
            lambda: x.sum().item(),
            lambda: x.tolist(),
            lambda: x.cpu(),
            lambda: x.nonzero(),
            lambda: x[x > 0],
            lambda: torch.tensor([1.0], device=DEVICE),
            lambda: torch.ones(3).to(DEVICE, non_blocking=True),
            lambda: torch.ones(3).pin_memory().to(DEVICE),
        ):
            wait()
        _ = torch.ones(3).pin_memory().to(DEVICE, non_blocking=True) + x
    return sorted(kind.split()[0] for kind in every.found.elements())
