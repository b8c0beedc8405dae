"""Rank functions: predictions of models in exact layouts, against the same models alone.

Findings go to OUT/RANK.json: for each layout and model the relative errors by length, and what was refused.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig, DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import World, join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.objectives.level import Level
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.context.runner import ContextParallelModel
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.prediction.guidance import Guided
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, SchedulePoint, WholeModel
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import Slicing
from tests.train.clips import tiny_config
from tests.train.comparison import relative
from tests.train.parallel.wide import Wide
from tests.train.published import CALLED, publish
from tests.train.sampling.prediction import guidance_ranks
from tests.train.sampling.scalefusion.ulysses import UlyssesSTDiT

IMPORTED_FIRST = ("diffusers.models.transformers",)
HEADS = 12  # divided by 2, 3 and 4 ranks
TINY = {"hidden": 72, "heads": HEADS, "layers": 1}
SLICED = ("st_dit, scalefusion", "st_dit, heads")
MODELS = {
    "dit": DiTConfig(**TINY),
    "st_dit": STDiTConfig(**TINY, full_attention=True, absolute_positions=True),
    **dict.fromkeys(SLICED, STDiTConfig(**TINY)),
    "mmdit": MMDiTConfig(**TINY | {"layers": 2}),
    "wan": {},
    "cogvideox": {},
    "cogvideox 1.5": {},
    "hunyuan, distilled": {"fused": False},
    "cosmos": {},
}
# Ranks by passes of guidance, ring and Ulysses, in ascending order along each, as process groups have them. Ranks of a
# group are not the world's where that is possible.
LAYOUTS = {
    "one": [[[2]]],
    "cfg 2": [[[1]], [[3]]],
    "ulysses 2": [[[1, 3]]],
    "ring 2": [[[0], [2]]],
    "cfg 3": [[[0]], [[2]], [[3]]],
    "ring 3": [[[0], [2], [3]]],
    "ulysses 3": [[[1, 2, 3]]],
    "cfg 4": [[[0]], [[1]], [[2]], [[3]]],
    "ring 4": [[[0], [1], [2], [3]]],
    "ulysses 4": [[[0, 1, 2, 3]]],
    "ring 2 x ulysses 2": [[[0, 1], [2, 3]]],
    "cfg 2 x ring 2": [[[0], [2]], [[1], [3]]],
    "cfg 2 x ulysses 2": [[[0, 1]], [[2, 3]]],
}
WHOLE = ("ulysses 2", "ring 3", "ring 2 x ulysses 2")
"""Layouts at every length with models of ours; the others, and published models, take turns."""
MEMBERS = {name: list(chain(*chain(*grid))) for name, grid in LAYOUTS.items()}
WEIGHTS = (3.0, -2.0)
"""Weights of the passes; other numbers of passes are in `guidance_ranks`."""
CHANNELS, TEXT = 4, 8
TWO_HEADS = "cosmos, two heads"
GRIDS = [
    {"prompts": 2, "ulysses": 2},
    {"prompts": 2, "cfg": 2},
    {"cfg": 4},
    {"ring": 4},
    {"ulysses": 4},
    {"ring": 2, "ulysses": 2},
    {"cfg": 2, "ring": 2},
    {"cfg": 2, "ulysses": 2},
    {"prompts": 2, "ring": 2},
]
SLICED_GRIDS = [
    degrees | {"scalefusion": (2, 2, 1, 1)}
    for degrees in (
        {"ring": 4},
        {"ring": 2, "ulysses": 2},
        {"cfg": 2, "ulysses": 2},
        {"prompts": 2, "ring": 2},
    )
]
WINDOWED = ("dit", "st_dit", "mmdit", "wan")


def grid_of(model: str, tokens: int) -> tuple[int, int, int]:
    """A grid of so many tokens, with as many axes as divide them; within each model's positions."""
    if model == "cogvideox 1.5":
        rows, columns = (2, 2) if tokens % 4 == 0 else (1, 2) if tokens % 2 == 0 else (1, 1)
        return tokens // rows // columns, rows, columns
    frames = next(n for n in (3, 2, 1) if tokens % n == 0)
    rows = 2 if tokens // frames % 2 == 0 else 1
    return frames, rows, tokens // frames // rows


def size_of(dit: Denoiser, grid: tuple[int, int, int]) -> list[int]:
    return [n * size for n, size in zip(grid, dit.patch, strict=True)]


def inputs(size: list[int], dtype: torch.dtype, padding: float = 0.0, number: int = 0) -> tuple:
    """Latents, times and the text of a pass, of two videos; ``padding`` fills text that the mask leaves out."""
    draw = torch.Generator().manual_seed(sum(size))
    x, *texts = (
        torch.randn(2, *n, generator=draw).to(dtype) for n in ((CHANNELS, *size), *[(5, TEXT)] * (number + 1))
    )
    mask = torch.arange(5) < torch.tensor([5, 2 + number])[:, None]
    text = torch.where(mask[..., None], texts[-1], padding)
    return x, torch.tensor([0.3, 0.8], dtype=dtype), Conditions(text, mask)


@cache
def model(name: str, out: str, dtype: torch.dtype) -> Denoiser:
    config = MODELS[name]
    if isinstance(config, dict):
        called = CALLED.get(name, {})
        config = DiffusersConfig(name=f"{out}/{name}", **called, **config)
    torch.manual_seed(0)
    denoiser = build_denoiser(config, CHANNELS, TEXT)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return denoiser.to(dtype).eval()


def lengths(layout: str, name: str, every: bool = False) -> Iterator[tuple[int, torch.dtype]]:
    """Lengths up to four times the ranks, in float64 and float32.

    Those of `WHOLE` have all of them with models of ours; else layouts of as many ranks take turns: each model meets
    every length, and each layout every length with some model. Published models stop at twice the ranks where there are
    fewer than four.
    ``every``: all lengths in all layouts.
    """
    ranks, published = len(MEMBERS[layout]), isinstance(MODELS[name], dict)
    shorter = published and ranks < 4 and not every
    whole = layout in WHOLE and not published
    alike = [other for other, members in MEMBERS.items() if len(members) == ranks]
    turn = alike.index(layout) + list(MODELS).index(name)
    most = (2 if shorter else 4) * ranks
    for tokens in range(1, most + 1):
        if every or whole or (tokens + turn) % len(alike) == 0:
            yield tokens, torch.float64
        if (
            every
            or (tokens + turn) % (4 * len(alike)) == len(alike)
            or (layout in WHOLE and tokens == most - 1)
        ):
            yield tokens, torch.float32


def wide(name: str) -> AbstractContextManager:
    """What keeps float64 in a model of diffusers; ours keep it by themselves."""
    return Wide() if isinstance(MODELS[name], dict) else nullcontext()


class Placed:
    """Ranks of a layout, seen from one of them."""

    def __init__(self, grid: list[list[list[int]]], device: torch.device) -> None:
        mesh = DeviceMesh("cpu", grid, mesh_dim_names=("cfg", "ring", "ulysses"))
        # One rank, or all of the world in its order: what an ST-DiT exchanges tokens over.
        together = dist.group.WORLD if len(grid) == 1 else None
        self.member = mesh.get_coordinate() is not None
        if self.member:
            self.context = ContextParallel(mesh.get_group("ring"), mesh.get_group("ulysses"), together)
            cfg = mesh.get_group("cfg")
            self.cfg = World(dist.get_rank(cfg), dist.get_world_size(cfg), device, cfg)

    def runner(self, name: str, dit: Denoiser, grid: tuple[int, int, int]) -> ModelRunner:
        """The model on the ranks that share a sequence."""
        if self.context.size == 1:
            return WholeModel(dit)
        if name == "st_dit, heads":
            return UlyssesSTDiT(dit, self.context.group)
        if name == "st_dit, scalefusion":
            T, S = grid[0], math.prod(grid[1:])
            return ScaleFusion(dit, self.context.group, Slicing(min(2, T), min(3, S), 1, min(2, S)))
        return ContextParallelModel(dit, self.context)

    def predicted(
        self, runner: ModelRunner, size: list[int], dtype: torch.dtype, padding: float, cfg: World | None
    ) -> torch.Tensor:
        """A prediction: under guidance where ranks share its passes, else of one pass."""
        passes = len(WEIGHTS) if self.cfg.size > 1 else 1
        x, times, _ = inputs(size, dtype)
        conditions = [inputs(size, dtype, padding, number)[2] for number in range(passes)]
        one = torch.ones(1, dtype=dtype)
        point = SchedulePoint(0, 1, Level(one, one, 0.7 * one, times, one, one, one))
        return Guided(runner, conditions, WEIGHTS[:passes] if passes > 1 else (1.0,), cfg)(x, point)


def compared(placed: Placed, layout: str, name: str, out: str, every: bool) -> dict[str, object]:
    """Errors of all lengths; whole predictions are compared by one rank each, and have one hash on all ranks."""
    refused, errors, hashes, members = [], {}, [], MEMBERS[layout]
    for turn, (tokens, dtype) in enumerate(lengths(layout, name, every)):
        dit, grid = model(name, out, dtype), grid_of(name, tokens)
        size = size_of(dit, grid)
        with wide(name) if dtype == torch.float64 else nullcontext():
            try:
                runner = placed.runner(name, dit, grid)
                found = placed.predicted(runner, size, dtype, 1e3, placed.cfg)
            except UsageError as error:
                refused.append((tokens, str(error)))
                continue
            hashes.append(hashlib.sha256(found.numpy().tobytes()).hexdigest())
            if members[turn % len(members)] == dist.get_rank():
                expected = placed.predicted(WholeModel(dit), size, dtype, 0.0, None)
                assert found.shape == expected.shape
                errors[f"{tokens} {dtype}"] = relative(found, expected)
    return {
        "refused": refused,
        "errors": errors,
        "hash": hashlib.sha256("".join(hashes).encode()).hexdigest(),
    }


def windowed(ranks: ContextParallel, name: str, out: str) -> float:
    """Error of a window in the middle of a larger video."""
    dit = model(name, out, torch.float64)
    size = size_of(dit, (2, 2, 3))
    window = Window(tuple(size_of(dit, (1, 3, 2))), tuple(size_of(dit, (4, 6, 7))))
    asked = inputs(size, torch.float64)
    with wide(name):
        found = ContextParallelModel(dit, ranks)(*asked, window)
        expected = WholeModel(dit)(*asked, window)
    return relative(found, expected)


def videos(world: World, name: str, grids: dict[str, dict]) -> dict[str, dict[str, object]]:
    """Guided videos of one seed on grids of four ranks: errors of latents, and hashes of pixels."""
    train = tiny_config().model_copy(update={"model": MODELS[name]})
    bundle = guidance_ranks.model(train)
    config = SampleConfig(**guidance_ranks.SIZE, steps=3, guidance=3.0, seed=7)

    def made(layout: VideoLayout) -> tuple[torch.Tensor, str]:
        sampler = VideoSampler(bundle, train.losses, config, layout)
        latents = sampler.denoise(sampler.encode(["a wave"]), [7])
        video = sampler.decode(latents)
        return latents, "" if video is None else hashlib.sha256(video.numpy().tobytes()).hexdigest()

    expected, pixels = made(VideoLayout.alone(bundle))
    found = {}
    for case, degrees in grids.items():
        asked = SampleLayoutConfig(**degrees)
        ranks = SamplingRanks(SamplingMesh.of(asked, world.size), world)
        with count_sent_bytes() as sent:
            latents, own = made(build_layout(bundle, ranks, asked))
        found[case] = {
            "error": relative(latents, expected),
            "same pixels": own == pixels,
            "first": ranks.video.rank == 0,
            "bytes": sent.total,
        }
    return found


def refusals(placed: Placed, out: str) -> list[str]:
    """What models say of two heads on four ranks of Ulysses."""
    said, tiny = [], {"hidden": 24, "heads": 2, "layers": 1}
    for config in (DiTConfig(**tiny), MMDiTConfig(**tiny), DiffusersConfig(name=str(Path(out) / TWO_HEADS))):
        try:
            ContextParallelModel(build_denoiser(config, CHANNELS, TEXT), placed.context)
        except UsageError as error:
            said.append(str(error))
    return said


VIDEOS = {"dit": GRIDS, "mmdit": GRIDS[-3:], SLICED[0]: SLICED_GRIDS}


@torch.no_grad()
def compute(
    out: str, cases: list[list[str]], windows: list[list[str]], seeded: list[str], every: bool = False
) -> None:
    """Cases and windows by layout and model, at all lengths or in turns, and videos of one seed."""
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    with join("cpu") as world:
        for layout, grid in LAYOUTS.items():
            placed = Placed(grid, world.device)
            if not placed.member:
                continue
            for name in MODELS:
                if [layout, name] in cases:
                    found[f"{layout}, {name}"] = compared(placed, layout, name, out, every)
                if [layout, name] in windows:
                    found[f"{layout}, {name}, window"] = windowed(placed.context, name, out)
            if layout == "ulysses 4":
                found["refused"] = refusals(placed, out)
        found["videos"] = {}
        for name, grids in VIDEOS.items():
            asked = {f"{name}, {degrees}": degrees for degrees in grids}
            found["videos"] |= videos(world, name, {case: asked[case] for case in asked if case in seeded})
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))


def publish_models(folder: Path) -> None:
    """Models of other people, for all ranks."""
    for name, config in MODELS.items():
        if isinstance(config, dict):
            publish(folder / name, name, CHANNELS, HEADS)
    publish(folder / TWO_HEADS, "cosmos", CHANNELS)
