"""Short runs in several layouts, with videos sampled in between and without, and sampled again from the checkpoint."""

import os
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from reelweave.loader.errors import RunError
from reelweave.pipelines.cli import main
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World, join
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from reelweave.train.loop.validation_config import ValidationConfig
from reelweave.train.parallel.mesh import DATA, Mesh
from reelweave.train.sampling.config import SampleLayoutConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import build_layout
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from reelweave.train.sampling.trained.load import load_trained
from tests.train.parallel.layouts import ST_DIT, STAGED, Case, config_of, stream_of

IMPORTED_FIRST = (
    *(
        "reelweave.pipelines.commands.train.sample",
        "reelweave.pipelines.sampling.run",
        "reelweave.pipelines.terminal.mp4",
        "av",
        "PIL.Image",
    ),
    "tests.train.cascade.training.planned",
)
FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
ALONE = {
    "fsdp": Case(FSDP, "float32"),
    "zero-bfloat16": Case(FSDP | {"shard": "optimizer"}, "bfloat16"),
    "cascade": Case({"schedule": "cascade"}, "float32"),
    "pp-fsdp": Case(FSDP | {"pp": 2}, "float32", model=STAGED),
}
"""Layouts in which a pass has the bits of one process."""
CONTEXT = {
    "ring-ulysses": Case({"ring": 2, "ulysses": 2}, "float32"),
    "ulysses-fsdp": Case(FSDP | {"ulysses": 2}, "float32", model=ST_DIT),
}
"""Layouts that `reelweave sample` has too."""
SPLIT = {
    "tp-ring": Case({"tp": 2, "ring": 2}, "float32"),
}
"""Layouts of training alone."""
SHARDED = SPLIT.keys() | {"fsdp", "pp-fsdp"}
"""Layouts that `reelweave sample --layout training` samples in."""
CASES = ALONE | CONTEXT | SPLIT
PROMPTS = ("a wave", "a wave going 3", "a wave going 5")


def validation_config(**update) -> ValidationConfig:
    asked = {
        "prompts": PROMPTS,
        "every_steps": 2,
        "frames": 3,
        "height": 16,
        "width": 24,
        "steps": 2,
        "guidance": 3.0,
        "seed": 7,
    }
    return ValidationConfig(**asked | update)


def raw(video_CTHW: np.ndarray, fps: int) -> bytes:
    """No codec, so that bits can be compared."""
    return video_CTHW.tobytes()


def compare(out: str, names: list[str]) -> None:
    """Cases with validation and without; then samples of its checkpoint, in its layout."""
    torch.set_num_threads(1)
    with join("cpu") as world:
        for name in names:
            case = CASES[name]
            config = config_of(case, case.parallel)
            schedule = config.schedule.model_copy(update={"total_steps": 3})
            config = config.model_copy(update={"schedule": schedule})
            mesh = Mesh.of(config.parallel, world.size)
            data = next(ranks.index(world.rank) for ranks in mesh.partition(DATA) if world.rank in ranks)
            asked = Validation(validation_config(before_first_step=True), raw)
            for kind, validation in (("with", asked), ("without", None)):
                stream = stream_of(data, mesh.degree(DATA))
                Trainer(config, stream, Path(out) / name / kind, validation=validation).run()
            if name not in ALONE or name in SHARDED:
                checkpoint = Path(out) / name / "with" / "checkpoints" / "step-000002"
                sampled = _by_command if name in CONTEXT else _in_training_layout
                sampled(str(checkpoint), config, world, Path(out) / name / "sampled")


def _by_command(checkpoint: str, config: TrainConfig, world: World, out: Path) -> None:
    """Samples with whole weights, as `reelweave sample --layout ring=R,ulysses=U` does; groups of ranks take turns."""
    trained = load_trained(checkpoint, world.device)
    degrees = SampleLayoutConfig(ring=config.parallel.ring, ulysses=config.parallel.ulysses)
    ranks = SamplingRanks(SamplingMesh.of(degrees, world.size), world)
    layout = build_layout(trained.bundle, ranks, degrees)
    sampler = VideoSampler(trained.bundle, trained.config.losses, validation_config(), layout)
    for number in range(ranks.number, len(PROMPTS), ranks.mesh.prompts):
        _write(sampler, number, out)


def _in_training_layout(checkpoint: str, config: TrainConfig, world: World, out: Path) -> None:
    """Samples with `reelweave sample --layout training`; no codec here either."""
    prompts = out.parent / "prompts.txt"
    if world.rank == 0:
        prompts.write_text("\n".join(PROMPTS))
    world.barrier()
    asked = validation_config()
    words = ["sample", "--checkpoint", checkpoint, "--prompts", str(prompts), "--out", str(out)]
    words += ["--layout", "training", "--size", f"{asked.height}x{asked.width}", "--device", "cpu", "--json"]
    words += [f"--{name}={getattr(asked, name)}" for name in ("frames", "steps", "guidance", "seed")]
    with (
        mock.patch("reelweave.pipelines.sampling.run.encode_mp4", raw),
        (out.parent / f"rank-{world.rank}.json").open("w") as said,
        redirect_stdout(said),
    ):
        assert main(words) == 0


def _write(sampler: VideoSampler, number: int, out: Path) -> None:
    latents = sampler.denoise(sampler.encode([PROMPTS[number]]), [7 + number])
    video = sampler.decode(latents)
    if video is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{number:03d}.mp4").write_bytes(raw(video[0].numpy(), 24))


def failing(out: str, name: str, failed: str) -> None:
    """The rank of this number cannot write its videos."""

    def full(video_CTHW: np.ndarray, fps: int) -> bytes:
        if os.environ["RANK"] == failed:
            raise RunError("the disk is full")
        return raw(video_CTHW, fps)

    case = CASES[name]
    config = config_of(case, case.parallel).model_copy(update={"lost_after_s": 8.0})
    mesh = Mesh.of(config.parallel, int(os.environ["WORLD_SIZE"]))
    rank = int(os.environ["RANK"])
    data = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
    stream = stream_of(data, mesh.degree(DATA))
    Trainer(config, stream, Path(out), validation=Validation(validation_config(), full)).run()
