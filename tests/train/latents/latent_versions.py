"""A small dataset of clips, configurations that store its latents, and runs on either."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.dataset import Sample
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.pipelines.commands.train.train import train
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.latents.run import LatentsOutcome, make_latents
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.logs.records import read_metrics
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.train.clips import tiny_config

STEPS = 6
WAYS: dict[str, dict[str, Any]] = {
    "step": {"microbatches": 3},
    "pack": {"microbatches": 2, "regime": "pack"},
}
MIXED = {"on_the_fly": ("5x16x24",)}
SIZES = ((6, (80, 64)), (10, (80, 64)), (7, (64, 80)))
"""(frames, (width, height)), over and over."""


def write_clips(folder: Path, count: int = 15, shapeless: bool = True) -> Path:
    """Samples of three shapes, and one that fits no bucket."""
    clips = [
        (write_video(folder / f"{frames}.mp4", (frames,), size=size).read_bytes(), frames, size)
        for frames, size in SIZES
    ]
    samples: list[Sample] = [make_sample(f"key{n:02}", *clips[n % 3]) for n in range(count)]
    if shapeless:
        tiny = write_video(folder / "tiny.mp4", (6,), size=(12, 10)).read_bytes()
        samples.append(make_sample("tiny", tiny, 6, (12, 10)))
    return write(folder / "set", samples)


def run_config(
    dataset: object,
    out: Path,
    latents: dict[str, Any] | None = None,
    train_config: TrainConfig | None = None,
    way: str = "step",
    mode: str = "all",
    **more: Any,
) -> TrainRunConfig:
    """A short run; with ``latents`` that store float32, in this process, unless they say otherwise."""
    config = train_config or tiny_config(STEPS, every_steps=STEPS)
    buckets = BucketConfig(
        frames=(1, 5, 9),
        sizes=((16, 24), (24, 16)),
        compression=config.compression,
        max_text_tokens=9,
        memory_tokens=300,
        sampling={"mode": mode},
    )
    return TrainRunConfig(
        dataset=str(dataset),
        out=out,
        stream=StreamConfig(buckets=buckets, workers=1, prefetch=1, **WAYS[way]),
        train=config,
        latents={"runner": "sequential", "dtype": "float32", **(latents or {})},
        **more,
    )


def version(dataset: object, out: object, *, progress: Any = lambda _: None, **how: Any) -> LatentsOutcome:
    """The dataset's version with latents."""
    return make_latents(str(dataset), str(out), run_config(dataset, Path("unused"), **how), progress)


def losses(dataset: object, out: Path, **how: Any) -> list[float | None]:
    """Of each step of a run."""
    train(run_config(dataset, out, **how))
    return [metrics.loss for metrics in read_metrics(out, STEPS)]


def contents(folder: Path) -> dict[str, str]:
    """sha256 of each file but the manifest, which holds measured seconds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def killed_behind(dataset: str, out: str, shards: int) -> None:
    """Makes a version, and gets SIGKILL once so many shards are written."""

    def kill(progress: Any) -> None:
        if progress.done == shards:
            os.kill(os.getpid(), signal.SIGKILL)

    version(dataset, out, latents={"max_shard_mb": 0.1}, progress=kill)
