"""Rank functions: predictions of models in layouts of training, against the same models alone."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import torch

from reelweave.train.config.model import DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import join
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.mesh import DATA, MODEL, Ranks
from reelweave.train.sampling.in_training.loading import load_trained_on
from reelweave.train.sampling.in_training.runner import training_runner
from reelweave.train.sampling.prediction.predictor import Conditions, WholeModel
from tests.train.allocated import AllocatedMemory
from tests.train.clips import tiny_config
from tests.train.comparison import relative

FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
SIZES = {"hidden": 24, "heads": 4}
MODELS = {
    "dit": DiTConfig(**SIZES, layers=2),
    "mmdit": MMDiTConfig(**SIZES, layers=2),
    "st_dit": STDiTConfig(**SIZES, layers=4),
}
"""As many layers as stages."""
CASES = {
    "zero": ({"dp_shard": 4, "shard": "optimizer"}, "dit"),
    "fsdp, tp": (FSDP | {"tp": 2}, "mmdit"),
    "fsdp, ulysses": (FSDP | {"ulysses": 2}, "mmdit"),
    "tp, ring": ({"tp": 2, "ring": 2}, "dit"),
    "pp": ({"pp": 4}, "st_dit"),
    "pp, ring": ({"pp": 2, "ring": 2}, "mmdit"),
    "pp, fsdp": (FSDP | {"pp": 2}, "dit"),
}


@cache
def whole(model: str, seed: int) -> dict[str, torch.Tensor]:
    """Weights by name, drawn, so that no gate is shut."""
    draw = torch.Generator().manual_seed(seed)
    bundle = Bundle(config_of(model, {}))
    return {
        name: 0.2 * torch.randn(parameter.shape, generator=draw)
        for name, parameter in bundle.dit.named_parameters()
    }


def config_of(model: str, parallel: dict):
    update = {"model": MODELS[model], "parallel": ParallelConfig(**parallel)}
    return tiny_config(3).model_copy(update=update)


@torch.no_grad()
def fill_(parameters: dict[str, torch.nn.Parameter], weights: dict[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        pieces.copy_(parameter, weights[name])


def inputs(number: int, channels: int, text_width: int) -> tuple:
    """Latents, times and text of two videos of a rank's own."""
    draw = torch.Generator().manual_seed(number)
    x, text = (torch.randn(2, *n, generator=draw) for n in ((channels, 3, 2, 6), (5, text_width)))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    return x, torch.tensor([0.3, 0.8]), Conditions(text, mask)


def compared(case: str, world) -> dict[str, object]:
    """Errors of predictions of two sets of weights, one after the other, and one hash per group of model ranks."""
    parallel, name = CASES[case]
    config = config_of(name, parallel)
    ranks = Ranks.of(config.parallel, world)
    laid_out = lay_out(config.step, ranks)
    dit, alone = laid_out.bundle.dit.eval(), Bundle(config_of(name, {})).dit.eval()
    runner = training_runner(dit, ranks)
    number = next(n for n, group in enumerate(ranks.mesh.partition(MODEL)) if world.rank in group)
    assert len(ranks.mesh.partition(MODEL)) == ranks.mesh.degree(DATA)
    bundle = laid_out.bundle
    asked = inputs(number, bundle.tokenizer.channels, bundle.text.width)
    # As in training: of FSDP's weights, always the shards.
    own, others = dict(dit.named_parameters()), dict(alone.named_parameters())
    errors, hashes = [], []
    for seed in (0, 1):
        weights = whole(name, seed)
        fill_(own, weights)
        fill_(others, weights)
        with torch.no_grad():
            found, expected = runner(*asked), WholeModel(alone)(*asked)
        errors.append(relative(found, expected))
        hashes.append(hashlib.sha256(found.numpy().tobytes()).hexdigest())
    return {"errors": errors, "number": number, "hash": hashes}


def compute(out: str, names: list[str]) -> None:
    """Cases in float64, and one in float32."""
    torch.set_num_threads(1)
    found = {}
    with join("cpu") as world:
        torch.set_default_dtype(torch.float64)
        for case in names:
            if case in CASES:
                found[case] = compared(case, world)
        torch.set_default_dtype(torch.float32)
        whole.cache_clear()
        found["float32"] = compared("pp, ring", world)
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


LOADED = {"fsdp": FSDP, "tp": {"tp": 2, "dp_replicate": 2}, "tp, fsdp": FSDP | {"tp": 2}, "pp": {"pp": 4}}
"""Degrees in which a checkpoint of one process is loaded."""


def load(out: str, checkpoint: str) -> None:
    """Bytes of the denoiser on this rank, and of live tensors at the peak of loading; and its weights, gathered."""
    found = {}
    with join("cpu") as world:
        for name, degrees in LOADED.items():
            with AllocatedMemory() as memory:
                trained = load_trained_on(world, checkpoint, ParallelConfig(**degrees))
            weights = pieces.gather_tensors(dict(trained.bundle.dit.named_parameters()))
            found[name] = {
                "peak": memory.peak,
                "weights": {
                    name: hashlib.sha256(w.detach().numpy().tobytes()).hexdigest()
                    for name, w in weights.items()
                },
            }
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
