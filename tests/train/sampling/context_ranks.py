"""Rank functions: predictions of models on sequences cut over ranks, against the same models alone.

Findings go to OUT/RANK.json: for each case the largest relative error, and what was refused.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from loader.errors import UsageError
from tests.train.clips import tiny_config
from tests.train.comparison import relative
from tests.train.published import CALLED, publish
from tests.train.sampling import guidance_ranks
from tests.train.wide import Wide
from train.config.model import DiffusersConfig, DiTConfig, MMDiTConfig, STDiTConfig
from train.distributed.sent_bytes import count_sent_bytes
from train.distributed.world import World, join
from train.models.attention.positions import Window
from train.models.build import build_denoiser
from train.models.denoiser import Denoiser
from train.parallel.context.context import ContextParallel
from train.sampling.config import SampleConfig, SampleLayoutConfig
from train.sampling.context.runner import ContextParallelModel
from train.sampling.generate import VideoSampler
from train.sampling.layout import VideoLayout, build_layout
from train.sampling.mesh import SamplingMesh, SamplingRanks
from train.sampling.predictor import Conditions, WholeModel

IMPORTED_FIRST = ("diffusers", "tests.train.diffusers_models")
TINY = {"hidden": 24, "heads": 2, "layers": 1}
MODELS = {
    "dit": DiTConfig(**TINY),
    "st_dit": STDiTConfig(**TINY, full_attention=True),
    "mmdit": MMDiTConfig(**TINY | {"layers": 2}),
    "wan": {},
    "cogvideox": {},
    "cogvideox 1.5": {},
    "hunyuan, distilled": {"fused": False},
    "cosmos": {},
}
MESHES = {"ulysses 2": [[3, 1]], "ring 3": [[0], [2], [3]], "ring 2 x ulysses 2": [[0, 1], [2, 3]]}
CHANNELS, TEXT = 4, 8
GRIDS = [
    {"prompts": 2, "ulysses": 2},
    {"ring": 4},
    {"ring": 2, "ulysses": 2},
    {"cfg": 2, "ring": 2},
    {"cfg": 2, "ulysses": 2},
    {"prompts": 2, "ring": 2},
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


def inputs(size: list[int], dtype: torch.dtype, padding: float = 0.0) -> tuple:
    """Latents, times and text of two videos; ``padding`` fills text that the mask leaves out."""
    draw = torch.Generator().manual_seed(sum(size))
    x, text = (torch.randn(2, *n, generator=draw).to(dtype) for n in ((CHANNELS, *size), (5, TEXT)))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    text = torch.where(mask[..., None], text, padding)
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


def lengths(ranks: int, name: str) -> Iterator[tuple[int, torch.dtype]]:
    """All lengths up to four times the ranks; of published models on fewer than four ranks up to twice."""
    most = 2 * ranks if isinstance(MODELS[name], dict) and ranks < 4 else 4 * ranks
    for tokens in range(1, most + 1):
        yield tokens, torch.float64
    yield most - 1, torch.float32


def wide(name: str) -> AbstractContextManager:
    """What keeps float64 in a model of diffusers; ours keep it by themselves."""
    return Wide() if isinstance(MODELS[name], dict) else nullcontext()


def compared(ranks: ContextParallel, name: str, out: str) -> dict[str, object]:
    """Errors at all lengths; whole predictions are compared by one rank each, and have one hash on all ranks."""
    refused, errors, hashes = [], {}, []
    for tokens, dtype in lengths(ranks.size, name):
        dit = model(name, out, dtype)
        size = size_of(dit, grid_of(name, tokens))
        runner = ContextParallelModel(dit, ranks)
        with wide(name) if dtype == torch.float64 else nullcontext():
            try:
                found = runner(*inputs(size, dtype, padding=1e3))
            except UsageError as error:
                refused.append((tokens, str(error)))
                continue
            hashes.append(hashlib.sha256(found.numpy().tobytes()).hexdigest())
            if tokens % ranks.size == ranks.rank:
                expected = WholeModel(dit)(*inputs(size, dtype))
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


def videos(world: World) -> dict[str, dict[str, object]]:
    """Guided videos of one seed on grids of four ranks: errors of latents, and hashes of pixels."""
    bundle = guidance_ranks.model()
    config = SampleConfig(**guidance_ranks.SIZE, steps=3, guidance=3.0, seed=7)

    def made(layout: VideoLayout) -> tuple[torch.Tensor, str]:
        sampler = VideoSampler(bundle, tiny_config(), config, layout)
        latents = sampler.denoise(sampler.encode(["a wave"]), [7])
        video = sampler.decode(latents)
        return latents, "" if video is None else hashlib.sha256(video.numpy().tobytes()).hexdigest()

    expected, pixels = made(VideoLayout.alone(bundle))
    found = {}
    for degrees in GRIDS:
        asked = SampleLayoutConfig(**degrees)
        ranks = SamplingRanks(SamplingMesh.of(asked, world.size), world)
        with count_sent_bytes() as sent:
            latents, own = made(build_layout(bundle, ranks, asked))
        found[str(degrees)] = {
            "error": relative(latents, expected),
            "same pixels": own == pixels,
            "first": ranks.video.rank == 0,
            "bytes": sent.total,
        }
    return found


@torch.no_grad()
def compute(out: str) -> None:
    """All cases."""
    torch.set_num_threads(1)
    found = {}
    with join("cpu") as world:
        for mesh_name, grid in MESHES.items():
            mesh = DeviceMesh("cpu", grid, mesh_dim_names=("ring", "ulysses"))
            if not any(world.rank in row for row in grid):
                continue
            ranks = ContextParallel(mesh.get_group("ring"), mesh.get_group("ulysses"), dist.group.WORLD)
            for name in MODELS:
                found[f"{mesh_name}, {name}"] = compared(ranks, name, out)
                if name in WINDOWED:
                    found[f"{mesh_name}, {name}, window"] = windowed(ranks, name, out)
        mesh = DeviceMesh("cpu", [[0, 1, 2, 3]], mesh_dim_names=("ring", "ulysses"))
        ranks = ContextParallel(mesh.get_group("ring"), mesh.get_group("ulysses"))
        for name in ("dit", "cosmos"):
            try:
                ContextParallelModel(model(name, out, torch.float64), ranks)
            except UsageError as error:
                found[f"4 ranks, 2 heads, {name}"] = str(error)
        found["videos"] = videos(world)
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))


def publish_models(folder: Path) -> None:
    """Models of other people, for all ranks."""
    for name, config in MODELS.items():
        if isinstance(config, dict):
            publish(folder / name, name, CHANNELS)
