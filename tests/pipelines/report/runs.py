"""Runs on disk, written by the trainer's own writers."""

import json
import random
from pathlib import Path

import yaml

from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.simulation.timeline import Panel, page, trace
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs.breakdown import Breakdown, LossPart, LossRecord
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.metrics import StepMetrics
from reelweave.train.loop.logs.rank_records import RankRecord
from reelweave.train.measure.rank_waits import RankWaits
from reelweave.train.measure.step_times import StepTimes
from tests.train.clips import ClipStream, tiny_config

RANKS = 4
SLOW_RANK = 2
SKIPPED = (7, 900)
PEAK_GIB = 78.5


def trained(out: Path) -> None:
    """Four real steps with held-out losses, checkpoints and validation videos of two prompts at steps 2 and 4."""
    from reelweave.pipelines.terminal.mp4 import encode_mp4
    from reelweave.train.loop.evaluation import HeldOutEvaluation
    from reelweave.train.loop.trainer import Trainer
    from reelweave.train.loop.validation import Validation
    from reelweave.train.loop.validation_config import ValidationConfig

    config = tiny_config(4, every_steps=2)
    config = config.model_copy(update={"log": config.log.model_copy(update={"every_steps": 2})})
    held_out = HeldOutEvaluation(2, lambda: [ClipStream().microbatch(step) for step in range(2)])
    size = {"frames": 3, "height": 16, "width": 24, "steps": 1, "guidance": 1.0}
    asked = ValidationConfig(prompts=("a wave", "a <b>dog</b>"), every_steps=2, **size)
    Trainer(config, ClipStream(), out, held_out, validation=Validation(asked, encode_mp4)).run()
    configured(out, config.model_dump(mode="json"))


def configured(out: Path, train: dict, **beside: object) -> None:
    """Write ``train.yaml`` as the command does."""
    head = f"# Resolved configuration with every key. To repeat:\n# reelweave train --config {out}/train.yaml\n\n"
    (out / "train.yaml").write_text(head + yaml.safe_dump({"out": str(out), **beside, "train": train}))


def recorded(out: Path, steps: int, seed: int = 0, slower: float = 1.0) -> list[dict]:
    """Steps of four ranks, of which one is slow, as the trainer writes them; returns the lines."""
    chance = random.Random(seed)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            file.write(_step(step, chance, slower).line("0123456789ab"))
    buckets = {"5x16x16": 0.0, "17x32x32": 0.1, "9x32x32": 0.2}
    with (out / "losses.jsonl").open("w") as file:
        for step in range(10, steps + 1, 10):
            for of in ("train", "held_out"):
                loss = 1 + 10 / step + (0.3 * step / steps if of == "held_out" else 0)
                found = Breakdown(
                    LossPart(loss, 40),
                    {f"{middle}": LossPart(loss + middle, 10) for middle in (0.125, 0.375, 0.625, 0.875)},
                    {name: LossPart(loss + more, 13) for name, more in buckets.items()},
                )
                file.write(LossRecord(step, of, found).line(""))
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def waited(out: Path, steps: int, ranks: int = RANKS, every: int = 10, begin: int = 0) -> list[RankWaits]:
    """Waits of ranks, of which one is slow, as the trainer writes them behind a step; returns them."""
    chance = random.Random(ranks)
    found = []
    with RunLog(out, LogConfig(), steps, steps, writes=True) as log:
        for step in range(begin + every, steps + 1, every):
            wait_s = [0.0 if rank == SLOW_RANK else chance.uniform(0.5, 2) for rank in range(ranks)]
            last = [every if rank == SLOW_RANK else 0 for rank in range(ranks)]
            peak = [round(60 + rank / 8, 3) for rank in range(ranks)]
            found.append(RankWaits(every, 10.0, wait_s, last, peak))
            log.write(RankRecord.of(step, found[-1]))
    return found


def cascaded(out: Path, step: int) -> tuple[Schedule, Schedule]:
    """Write the timeline of a step on four ranks; return what was planned and executed."""
    vae, dit, other = (Cascade(0, Module.VAE), Cascade(0, Module.DIT), Cascade(1, Module.DIT))
    planned = Schedule.of(
        [Run(vae, 0.0, 0.5, (0,)), Run(dit, 0.5, 2.0, (0, 1, 2)), Run(other, 0.0, 2.0, (3,))], 4
    )
    executed = Schedule.of(
        [Run(vae, 0.1, 0.7, (0,)), Run(dit, 0.8, 2.4, (0, 1, 2)), Run(other, 0.1, 2.5, (3,))], 4
    )
    panels = [Panel("planned", planned), Panel("executed", executed)]
    folder = out / "timeline"
    folder.mkdir(exist_ok=True)
    (folder / f"step-{step:06d}.json").write_text(json.dumps(trace(panels, 4)))
    (folder / f"step-{step:06d}.html").write_text(page(panels, "step", 4))
    return planned, executed


def _step(step: int, chance: random.Random, slower: float) -> StepMetrics:
    waited = chance.uniform(0.1, 0.3)
    parts = {
        name: chance.uniform(0.01, 0.1) * slower for name in ("data_s", "text_s", "vae_s", "optimizer_s")
    }
    parts |= {"forward_s": 0.3 * slower, "backward_s": 0.6 * slower, "sync_s": 0.05, "other_s": 0.01}
    slowest = SLOW_RANK if step % 10 else chance.randrange(RANKS)
    times = StepTimes(
        step_s=sum(parts.values()) + waited,
        wait_s=waited,
        wait_max_s=waited * 1.4,
        pause_s=0.4 if step % 100 == 0 else 0.001,
        slowest_rank=slowest,
        peak_gib=PEAK_GIB if step == 5 else chance.uniform(60, 70),
        **parts,
    )
    skipped = step in SKIPPED
    return StepMetrics(
        step=step,
        loss=None if skipped else 1 + 10 / step + chance.uniform(-0.1, 0.1),
        lr=1e-4,
        grad_norm=None if skipped else chance.uniform(0.1, 2),
        skipped=skipped,
        times=times,
        samples=8,
        tokens=chance.randrange(1000, 2000),
        flops=10**12,
        read_retries=int(step % 7 == 0),
        cache_hits=6,
        cache_misses=2,
        mfu=0.5 / times.step_s,
    )
