"""Rank functions: models on sequences cut over ranks, against the same models alone.

Findings go to OUT/RANK.json: relative errors of losses and of all gradients, and the collectives of a forward and a
backward.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import DiffusersConfig, DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.distributed.world import join
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.lora import adapt
from reelweave.train.parallel.activations import checkpoint_block
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.denoise import ContextParallelErrors
from reelweave.train.parallel.context.slices import SliceSharding
from reelweave.train.parallel.context.token_shard import part_of
from reelweave.train.parallel.context.traffic import AttentionSize, slices_bytes
from reelweave.train.step.squared_errors import DenoisingInputs, whole_model_errors
from tests.train.comparison import relative, relative_errors
from tests.train.parallel.context_ranks import Sent, random
from tests.train.parallel.wide import Wide, run_wide
from tests.train.published import CALLED, publish
from tests.train.references import divided

IMPORTED_FIRST = ("diffusers.models.transformers", "peft")
TINY = {"hidden": 24, "heads": 4, "layers": 2}
MODELS = {
    "dit": DiTConfig(**TINY),
    "st_dit": STDiTConfig(**TINY, adaln_rank=8),
    "st_dit, full": STDiTConfig(**TINY, full_attention=True),
    "mmdit": MMDiTConfig(**TINY),
    "wan": {},
    "wan, theirs": {"fused": False},
    "wan, adapters": {},
    "cogvideox": {},
    "cogvideox 1.5": {},
    "hunyuan": {},
    "hunyuan, theirs": {"fused": False},
    "cosmos": {},
}
PUBLISHED = ("wan", "cogvideox", "hunyuan", "cosmos")
# Ranks of a group are not the world's. Rows are rings' blocks.
MESHES = {
    "ulysses 2": [[3, 1]],
    "ring 3": [[0], [2], [3]],
    "ring 2 x ulysses 2": [[0, 1], [2, 3]],
}
# Latents of a batch, in patches of 1 x 2 x 2: neither frames nor places divide; fewer frames than ranks.
BATCHES = {"video": (3, 6, 10), "image": (1, 6, 4)}
# Patches of 2 x 2 x 2, and positions for 2 x 2 of them.
LATENTS = {"cogvideox 1.5": (10, 4, 4)}
PACK = [(1, 4, 4), (3, 4, 6), (1, 2, 2), (2, 6, 6)]
# Of variants, which differ in little, and of models that exchange tokens as others do.
MESHES_OF = {
    "cogvideox": ("ring 3", "ring 2 x ulysses 2"),
    "cosmos": ("ring 3", "ring 2 x ulysses 2"),
    "wan, theirs": ("ulysses 2",),
    "wan, adapters": ("ring 2 x ulysses 2",),
    "cogvideox 1.5": ("ring 2 x ulysses 2",),
    "hunyuan, theirs": ("ulysses 2",),
}
CHANNELS, TEXT = 4, 8
UNWATCHED = (nullcontext(), nullcontext())
SEEN = {
    "dit": "blocks.0.attend.query.weight",
    "st_dit": "blocks.0.spatial.query.weight",
    "mmdit": "blocks.0.text.attend.query.weight",
    "wan": "model.blocks.0.attn1.to_q.weight",
    "wan, adapters": "model.blocks.0.attn1.to_q.lora_B.default.weight",
    "cogvideox": "model.transformer_blocks.0.attn1.to_q.weight",
    "cogvideox 1.5": "model.transformer_blocks.0.attn1.to_k.weight",
    "hunyuan": "model.transformer_blocks.0.attn.add_q_proj.weight",
    "cosmos": "model.transformer_blocks.0.attn1.to_q.weight",
}


class Case(NamedTuple):
    """A model that is asked about a batch or a pack, with its blocks computed again in the backward or not."""

    mesh: str
    model: str
    what: str
    again: bool = False

    def __str__(self) -> str:
        return ", ".join([self.mesh, self.model, self.what, *["again"] * self.again])


def cases() -> Iterator[Case]:
    for mesh in MESHES:
        for model in MODELS:
            if mesh not in MESHES_OF.get(model, MESHES):
                continue
            yield Case(mesh, model, "video")
            if not model.startswith(PUBLISHED):
                yield Case(mesh, model, "pack")
    for mesh, model in (("ring 3", "st_dit"), ("ring 2 x ulysses 2", "mmdit")):
        yield Case(mesh, model, "image")
    for mesh, models in (("ring 3", ("st_dit", "cogvideox")), ("ring 2 x ulysses 2", ("wan", "hunyuan"))):
        for model in models:
            yield Case(mesh, model, "video", again=True)


def model(name: str, config) -> Denoiser:
    torch.manual_seed(0)
    denoiser = build_denoiser(config, CHANNELS, TEXT).double()
    if name == "wan, adapters":
        adapt(denoiser, LoraConfig(rank=2))
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return denoiser.double()


def question(what: str, name: str = "") -> DenoisingInputs:
    sizes = PACK if what == "pack" else [LATENTS.get(name, BATCHES[what])]
    B = len(PACK) if what == "pack" else 2
    batch = 1 if what == "pack" else B
    inputs, targets = (
        [random(batch, CHANNELS, *size, seed=first + n) for n, size in enumerate(sizes)] for first in (0, 9)
    )
    mask = torch.arange(5) < torch.tensor([5, 2, 1, 4][:B])[:, None]
    told = torch.linspace(0.1, 0.9, B, dtype=torch.float64)
    return DenoisingInputs(inputs, targets, told, random(B, 5, TEXT, seed=99), mask, what == "pack")


def differentiated(
    denoiser: Denoiser, asked: DenoisingInputs, errors, watched=UNWATCHED
) -> dict[str, torch.Tensor]:
    """The loss, and the gradients of the text and of all weights; a forward and a backward are watched."""
    asked = asked._replace(context=asked.context.clone().requires_grad_())
    with watched[0]:
        loss = errors(denoiser, asked).mean()
    with watched[1]:
        loss.backward()
    trained = {name: p.grad for name, p in denoiser.named_parameters() if p.requires_grad}
    return {"loss": loss.detach(), "text": asked.context.grad} | trained


def wide(name: str) -> AbstractContextManager:
    """What keeps float64 in a model of diffusers; ours keep it by themselves."""
    return Wide() if name.startswith(PUBLISHED) else nullcontext()


Found = dict[str, torch.Tensor]


def alone(name: str, what: str, config) -> Found:
    """What one process finds."""
    whole = model(name, config)
    with wide(name):
        return differentiated(whole, question(what, name), whole_model_errors)


def compared(ranks: ContextParallel, case: Case, config, expected: Found) -> dict[str, object]:
    watched = case.model.startswith("st_dit")
    ways = (Sent(), Sent()) if watched else UNWATCHED
    shared = model(case.model, config)
    if case.again:
        for block in shared.repeated():
            if case.model.startswith(PUBLISHED):
                run_wide(block)
            checkpoint_block(block, "full")
    with wide(case.model):
        found = differentiated(shared, question(case.what, case.model), ContextParallelErrors(ranks), ways)
    unused = {name for name, wanted in expected.items() if wanted is None}
    assert unused == {name for name, tensor in found.items() if tensor is None}
    expected = {name: wanted for name, wanted in expected.items() if name not in unused}
    found = {name: tensor for name, tensor in found.items() if name not in unused}
    for name, tensor in found.items():
        # Every rank has the whole loss.
        for group in () if name == "loss" else (ranks.ulysses, ranks.ring):
            dist.all_reduce(tensor, group=group)
    # A frame alone asks no past: gradients of its temporal queries and keys are zero but for rounding.
    assert case.what == "image" or all(wanted.any() for wanted in expected.values())
    errors = relative_errors(found, expected)
    # What a mean would make of it: the error that these checks must be able to see.
    seen = next(SEEN[key] for key in (case.model, case.model.split(",")[0]) if key in SEEN)
    missed = relative(found[seen] / ranks.size, expected[seen])
    errors["a mean goes unseen"] = abs(missed - (1 - 1 / ranks.size))
    if not watched:
        return {"errors": errors}
    exchanged = [way.bytes.by_kind().get("all_to_all", 0) for way in ways]
    return {"errors": errors, "events": [Counter(way.events) for way in ways], "bytes": exchanged}


def foretold(ranks: ContextParallel) -> int:
    """Bytes that an ST-DiT sends each way."""
    grid = [(BATCHES["video"][0], BATCHES["video"][1] // 2, BATCHES["video"][2] // 2)]
    places, frames = (SliceSharding.of(grid, axis, ranks.size) for axis in ("place", "frame"))
    size = AttentionSize(2, TINY["heads"], TINY["hidden"] // TINY["heads"], 8)
    return TINY["layers"] * slices_bytes(size, places, frames, ranks.rank)


def gathered(ranks: ContextParallel, config, expected: Found) -> dict[str, object]:
    """Every rank computes the same loss from the whole prediction, and takes its share of it."""

    def errors(denoiser: Denoiser, asked: DenoisingInputs) -> torch.Tensor:
        part = part_of(denoiser, asked, ranks)
        cut = ranks.cut(denoiser.tokens(asked.inputs[0].shape[2:]))
        values_BLV, wanted_BLV = (
            ranks.gather(x, cut)
            for x in (part.denoise(denoiser, asked.inputs), part.of(denoiser, asked.targets))
        )
        return (values_BLV - wanted_BLV).square().mean(dim=(1, 2)) / ranks.size

    found = differentiated(model("dit", config), question("video"), errors)
    for tensor in found.values():
        for group in (ranks.ulysses, ranks.ring):
            dist.all_reduce(tensor, group=group)
    return {"errors": relative_errors(found, expected)}


def refused(mesh: DeviceMesh) -> bool:
    """A group of all ranks in another order than that of the parts; on every rank, before anything is sent."""
    ranks = ContextParallel(mesh.get_group("ring"), mesh.get_group("ulysses"), dist.group.WORLD)
    try:
        part_of(model("st_dit", MODELS["st_dit"]), question("video"), ranks)
    except ValueError:
        return True
    return False


def publish_models(folder: Path) -> None:
    """Models of other people, for all ranks."""
    for name in MODELS:
        if name.startswith(PUBLISHED):
            publish(folder / name, variant(name), CHANNELS)


def variant(name: str) -> str:
    """The model in `tests.train.published`."""
    return name.split(",")[0]


def compute(out: str, names: list[str]) -> None:
    """Cases, and what is asked of every mesh."""
    chosen = [case for case in cases() if str(case) in names]
    torch.set_num_threads(1)
    configs = {
        name: DiffusersConfig(name=f"{out}/{name}", **CALLED.get(variant(name), {}), **config)
        if isinstance(config, dict)
        else config
        for name, config in MODELS.items()
    }
    with join("cpu") as world:
        groups = {}
        for name, grid in MESHES.items():
            mesh = DeviceMesh("cpu", grid, mesh_dim_names=("ring", "ulysses"))
            if any(world.rank in row for row in grid):
                groups[name] = ContextParallel(
                    mesh.get_group("ring"), mesh.get_group("ulysses"), dist.group.WORLD
                )
        asked = dict.fromkeys((case.model, case.what) for case in chosen) | {("dit", "video"): None}
        expected = divided({(name, what): partial(alone, name, what, configs[name]) for name, what in asked})
        found = {
            str(case): compared(groups[case.mesh], case, configs[case.model], expected[case.model, case.what])
            for case in chosen
            if case.mesh in groups
        }
        for name, ranks in groups.items():
            found[f"{name}, gathered"] = gathered(ranks, configs["dit"], expected["dit", "video"])
            found[f"{name}, foretold"] = foretold(ranks)
        other = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("ring", "ulysses"))
        found["another order"] = refused(other)
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))
