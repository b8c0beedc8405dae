"""Short runs in any layout, and the ranks that make them."""

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from reelweave.loader.errors import RunError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.model import DiTConfig, MMDiTConfig, ModelConfig, STDiTConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.evaluation import HeldOutEvaluation
from reelweave.train.loop.trainer import Trainer
from reelweave.train.parallel.mesh import DATA, Mesh
from tests.train.clips import ClipStream, tiny_config

STEPS = 3
SAMPLES = 8
# Samples of each microbatch of each data-parallel rank: other ranks have more, fewer, larger and smaller ones.
SPLITS = {1: ((2, 4, 2),), 2: ((1, 3), (4,)), 4: ((1, 1, 1), (2,), (2,), (1,))}


DIT = DiTConfig(hidden=24, heads=4, layers=2)
MMDIT = MMDiTConfig(hidden=24, heads=4, layers=2, adaln_rank=8)
STAGED = STDiTConfig(hidden=24, heads=4, layers=5)
ST_DIT = STDiTConfig(hidden=24, heads=4, layers=2, full_attention=True)


@dataclass(frozen=True)
class Case:
    """A run of three steps.

    Attributes:
        parallel: its layout.
        dtype: of all numbers, or bfloat16 for activations.
        grad_clip: largest norm.
        resumed_as: the layout that it goes on in behind step 2.
        model: what is trained.
        held_out: whether ranks look at held-out clips, each at one more batch than the one before.
        moments: storage of the optimizer's moments.
    """

    parallel: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    grad_clip: float = 1e9
    resumed_as: dict[str, Any] | None = None
    model: ModelConfig = DIT
    held_out: bool = False
    moments: Literal["float32", "bfloat16", "8bit"] = "float32"


FSDP: dict[str, Any] = {"dp_replicate": 1, "dp_shard": "rest"}
ZERO = FSDP | {"shard": "optimizer"}
CASES: dict[int, dict[str, Case]] = {
    2: {
        "replicated": Case(dtype="float32"),
        "fsdp": Case(FSDP, "float32", held_out=True),
        "zero": Case(ZERO, "float32"),
        "fsdp-bfloat16": Case(FSDP, "bfloat16"),
        "zero-bfloat16": Case(ZERO, "bfloat16"),
        "replicated-8bit": Case(dtype="float32", moments="8bit"),
        "zero-8bit-then-replicated": Case(ZERO, "float32", resumed_as={}, moments="8bit"),
    },
    4: {
        "hsdp": Case({"dp_shard": 2}, grad_clip=0.1),
        "fsdp-once": Case(FSDP | {"reduce_gradients": "step"}, grad_clip=0.1, held_out=True),
        "hsdp-once": Case({"dp_shard": 2, "reduce_gradients": "step"}, grad_clip=0.1, model=MMDIT),
        "zero-replicated": Case({"dp_shard": 2, "shard": "optimizer"}, grad_clip=0.1),
        "tp-fsdp": Case(
            FSDP | {"tp": 2, "activation_checkpointing": "selective"}, grad_clip=0.1, model=MMDIT
        ),
        "ring-ulysses": Case({"ring": 2, "ulysses": 2}, grad_clip=0.1),
        "ring-tp": Case({"ring": 2, "tp": 2, "activation_checkpointing": "full"}, grad_clip=0.1),
        "mmdit-ring-fsdp": Case(FSDP | {"ring": 2}, grad_clip=0.1, model=MMDIT, held_out=True),
        "mmdit-ulysses-tp": Case({"ulysses": 2, "tp": 2}, grad_clip=0.1, model=MMDIT),
        "st-dit-ring-ulysses": Case({"ring": 2, "ulysses": 2}, grad_clip=0.1, model=ST_DIT),
        "st-dit-ulysses-fsdp": Case(FSDP | {"ulysses": 2}, grad_clip=0.1, model=ST_DIT, held_out=True),
        "tp-then-ring-zero": Case({"tp": 2}, grad_clip=0.1, resumed_as=ZERO | {"ring": 2}),
        "pp": Case({"pp": 4}, grad_clip=0.1, model=STAGED, held_out=True),
        "pp-tp": Case({"pp": 2, "tp": 2, "activation_checkpointing": "full"}, grad_clip=0.1, model=MMDIT),
        "pp-fsdp": Case(FSDP | {"pp": 2}, grad_clip=0.1, held_out=True, model=MMDIT),
        "pp-fsdp-once": Case(FSDP | {"pp": 2, "reduce_gradients": "step"}, grad_clip=0.1, model=MMDIT),
        "pp-ring": Case({"pp": 2, "ring": 2}, grad_clip=0.1, model=MMDIT),
        "pp-ulysses": Case({"pp": 2, "ulysses": 2}, grad_clip=0.1, model=ST_DIT),
        "pp-zero-then-fsdp": Case(ZERO | {"pp": 2}, grad_clip=0.1, resumed_as=FSDP),
        "tp-then-pp": Case({"tp": 2}, grad_clip=0.1, resumed_as={"pp": 2, "pp_schedule": "gpipe"}),
    },
}


def config_of(case: Case, parallel: dict[str, Any]) -> TrainConfig:
    config = tiny_config(STEPS, every_steps=2)
    return config.model_copy(
        update={
            "model": case.model,
            # Image to video with the two-stream model, text to video with the others.
            "first_frames": FirstFramesConfig(dropout=0.3) if case.model == MMDIT else None,
            "ema": EmaConfig(),
            "optimizer": config.optimizer.model_copy(
                update={"grad_clip": case.grad_clip, "moments": case.moments}
            ),
            "dtype": "bfloat16" if case.dtype == "bfloat16" else "float32",
            "parallel": ParallelConfig(**parallel),
        }
    )


def stream_of(rank: int, ranks: int) -> ClipStream:
    split = SPLITS[ranks]
    return ClipStream(sizes=split[rank], first=sum(map(sum, split[:rank])), samples=SAMPLES)


class Cut(ClipStream):
    """Ends behind two steps."""

    def __iter__(self):
        return itertools.takewhile(lambda batch: batch.step < 2, super().__iter__())


def run_case(case: Case, out: Path, rank: int = 0, world_size: int = 1) -> None:
    """Runs a case in one process of its world."""
    torch.set_default_dtype(torch.float64 if case.dtype == "float64" else torch.float32)
    for parallel, stops in ((case.parallel, case.resumed_as), (case.resumed_as, None)):
        if parallel is None:
            continue
        config = config_of(case, parallel)
        mesh = Mesh.of(config.parallel, world_size)
        data_rank = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
        stream = stream_of(data_rank, mesh.degree(DATA)) if world_size > 1 else ClipStream(samples=SAMPLES)
        looked = [next(iter(stream_of(data_rank, mesh.degree(DATA))))] * (1 + data_rank)
        held_out = HeldOutEvaluation(2, lambda looked=looked: looked) if case.held_out else None
        if stops is not None:
            stream.__class__ = Cut
        try:
            Trainer(config, stream, out, held_out).run()
        except RunError as error:
            if stops is None:
                raise
            print(error)


def run_cases(out: str, names: list[str]) -> None:
    """Cases of the world's size, one after the other."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for name in names:
            run_case(CASES[world_size][name], Path(out) / name, rank, world_size)
