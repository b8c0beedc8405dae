"""Short runs in several layouts, with videos sampled in between and without."""

import os
from pathlib import Path

import numpy as np

from loader.errors import RunError
from tests.train.layouts import STAGED, Case, config_of, stream_of
from train.distributed.world import join
from train.loop.trainer import Trainer
from train.loop.validation import Validation
from train.loop.validation_config import ValidationConfig
from train.parallel.mesh import DATA, Mesh

FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
CASES = {
    "replicated": Case(dtype="float32"),
    "fsdp": Case(FSDP, "float32"),
    "zero-bfloat16": Case(FSDP | {"shard": "optimizer"}, "bfloat16"),
    "tp": Case({"tp": 2}, "float32"),
    "ulysses": Case({"ulysses": 2}, "float32"),
    "pp": Case({"pp": 2}, "float32", model=STAGED),
}
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


def compare(out: str) -> None:
    """Every case with validation and without."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for name, case in CASES.items():
            config = config_of(case, case.parallel)
            schedule = config.schedule.model_copy(update={"total_steps": 3})
            config = config.model_copy(update={"schedule": schedule})
            mesh = Mesh.of(config.parallel, size)
            data = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
            for kind, validation in (("with", Validation(validation_config(), raw)), ("without", None)):
                stream = stream_of(data, mesh.degree(DATA))
                Trainer(config, stream, Path(out) / name / kind, validation=validation).run()


def failing(out: str) -> None:
    """A rank cannot write its videos."""

    def full(video_CTHW: np.ndarray, fps: int) -> bytes:
        if os.environ["RANK"] == "1":
            raise RunError("the disk is full")
        return raw(video_CTHW, fps)

    config = config_of(CASES["fsdp"], FSDP).model_copy(update={"lost_after_s": 4.0})
    stream = stream_of(int(os.environ["RANK"]), 2)
    Trainer(config, stream, Path(out), validation=Validation(validation_config(), full)).run()
