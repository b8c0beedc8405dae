"""Runs whose frozen text encoder is whole, divided over the ranks, or on the host."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from reelweave.loader.errors import RunError
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.evaluation import HeldOutEvaluation
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import DATA, Mesh, Ranks
from tests.train.clips import ClipStream
from tests.train.loop.validation_runs import raw, validation_config
from tests.train.parallel.layouts import FSDP, SPLITS, STAGED, STEPS, Case, config_of

WORDS = ("a", "cat", "jumps", "over", "the", "dog")
LAYOUTS: dict[int, dict[str, tuple[Case, int]]] = {
    2: {
        "replicas": (Case(dtype="float32"), 2),
        "zero": (Case(FSDP | {"shard": "optimizer"}, "bfloat16"), 2),
    },
    4: {
        "two nodes": (Case(dtype="float32"), 2),
        "fsdp": (Case(FSDP, "float32"), 4),
        "ring": (Case({"ring": 2}, "float32"), 4),
        "stages": (Case({"pp": 2}, "float32", model=STAGED), 4),
    },
}
"""Layouts by number of ranks, each with the ranks of a node."""


class Captions(ClipStream):
    """Captions of all lengths, also empty ones; ends behind some steps."""

    last = STEPS

    def __iter__(self):
        return itertools.takewhile(lambda batch: batch.step < self.last, super().__iter__())

    def microbatch(self, step, slot=0):
        batch = super().microbatch(step, slot)
        counts = [(3 * int(key.removeprefix("clip")) + step) % 7 for key in batch.keys]
        return replace(batch, captions=tuple(" ".join(WORDS[:count]) for count in counts))


def captions_of(rank: int, ranks: int) -> Captions:
    split = SPLITS[ranks]
    return Captions(sizes=split[rank], first=sum(map(sum, split[:rank])), samples=8)


def text_config(case: Case, placed: str, text: dict[str, Any]) -> TrainConfig:
    parallel = ParallelConfig(**case.parallel, text_encoder=placed)
    return TrainConfig.model_validate(
        config_of(case, case.parallel).model_dump() | {"text": text, "parallel": parallel.model_dump()}
    )


def run_texts(out: str, text: dict[str, Any], names: list[str], placements: list[str]) -> None:
    """Each layout with each placement; a run with held-out clips, videos and a resume with the encoder whole."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    with join("cpu") as world:
        for name, placed in itertools.product(names, placements):
            case, node = LAYOUTS[world_size][name]
            with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(node)}):
                mesh = Mesh.of(ParallelConfig(**case.parallel), world_size)
                data = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
                stream = captions_of(data, mesh.degree(DATA))
                looked = [next(iter(captions_of(data, mesh.degree(DATA))))] * (1 + data)
                held_out = HeldOutEvaluation(2, lambda looked=looked: looked)
                stream.last = 2
                folder = Path(out) / name / placed
                for resumed in (placed, "whole"):
                    config = text_config(case, resumed, text)
                    validation = Validation(validation_config(), raw)
                    try:
                        Trainer(config, stream, folder, held_out, validation=validation).run()
                    except RunError:
                        assert stream.last == 2
                    stream = captions_of(data, mesh.degree(DATA))
                held = lay_out(
                    text_config(case, placed, text).step, Ranks.of(config.parallel, world)
                ).bundle.text
            local = [getattr(one, "to_local", lambda one=one: one)() for one in held.parameters()]
            Path(folder, f"held-{rank}.json").write_text(json.dumps(sum(one.nbytes for one in local)))
            world.barrier()  # no rank ends while others make groups
