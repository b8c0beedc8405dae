"""Ranks of runs with FP8 layers, emulated."""

import os
from pathlib import Path
from typing import Any

from reelweave.train.config.model import DiTConfig
from reelweave.train.config.optimizer import Fp8Config, ScheduleConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.trainer import Trainer
from reelweave.train.parallel.mesh import DATA, Mesh
from tests.train.clips import ClipStream, tiny_config

# torchao patches the compiler's code for Triton, which its first conversion imports: 1.5 s a rank.
IMPORTED_FIRST = ("torch._inductor.codegen.triton", "torchao.float8")
MODEL = DiTConfig(hidden=64, heads=4, layers=2)


def config_of(steps: int, fp8: dict[str, Any] | None, parallel: dict[str, Any] | None = None):
    return tiny_config(steps).model_copy(
        update={
            "model": MODEL,
            # One that does not depend on where the run ends.
            "schedule": ScheduleConfig(total_steps=steps, warmup_steps=2, min_lr_ratio=1.0),
            "dtype": "bfloat16",
            "fp8": None if fp8 is None else Fp8Config(emulate=True, **fp8),
            "parallel": ParallelConfig(**(parallel or {})),
        }
    )


FSDP: dict[str, Any] = {"dp_replicate": 1, "dp_shard": "rest"}
LAYOUTS: dict[int, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    2: {
        "fsdp": ({}, FSDP),
        "fsdp, gathered in FP8": ({"fsdp_all_gather": True}, FSDP),
        "zero": ({}, FSDP | {"shard": "optimizer"}),
        "tp": ({"recipe": "rowwise"}, {"tp": 2, "activation_checkpointing": "selective"}),
    },
    4: {"tp, fsdp": ({"fsdp_all_gather": True}, FSDP | {"tp": 2})},
}
"""By number of ranks: `Fp8Config` and `ParallelConfig`."""


def train_fp8(out: str, steps: int) -> None:
    """Trains in all layouts of its world on clips, of which tensor-parallel ranks have the same."""
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for name, (fp8, parallel) in LAYOUTS[size].items():
            config = config_of(steps, fp8, parallel)
            mesh = Mesh.of(config.parallel, size)
            rank = next(ranks.index(own) for ranks in mesh.partition(DATA) if own in ranks)
            Trainer(config, ClipStream(rank, mesh.degree(DATA)), Path(out) / name).run()
