"""One of four processes that run an ST-DiT by ScaleFusion, DSP and Ulysses, against the same model alone.

Findings go to OUT/RANK.json, by case: relative errors, and bytes sent less those of the formula.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from reelweave.train.config.model import STDiTConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.decode.decoder import WholeDecoder
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, WholeModel
from reelweave.train.sampling.scalefusion.exchanges import AsyncExchanges
from reelweave.train.sampling.scalefusion.jagged import TokenDivision, pass_bytes
from reelweave.train.sampling.scalefusion.measure import MeasuredScaleFusion, measure_costs
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import DEFAULT, DSP, Slicing
from tests.train.clips import BUCKETS, tiny_config
from tests.train.comparison import relative
from tests.train.parallel.context_ranks import random
from tests.train.sampling.scalefusion.ulysses import UlyssesSTDiT

# Ranks of a group are not its first ones, nor the world's, wherever they could be confused.
GROUPS = {1: [2], 2: [1, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}
HIDDEN, LAYERS, CHANNELS, TEXT = 24, 2, 4, 8
MODEL = STDiTConfig(hidden=HIDDEN, heads=4, layers=LAYERS, absolute_positions=True)
# Tokens along time, rows and columns: primes, fewer frames than ranks, an image, the paper's slices on 13 x 21.
GRIDS = [(3, 1, 5), (1, 2, 3), (5, 3, 2), (13, 3, 7)]
SLICINGS = [Slicing(1, 3, 1, 2), Slicing(1, 1, 0, 0), Slicing(5, 2, 2, 0), DEFAULT]


class Case(NamedTuple):
    """A video of so many tokens, cut into slices, or exchanged as heads where there are none."""

    ranks: int
    grid: tuple[int, int, int]
    slicing: Slicing | None
    dtype: str = "float64"
    batch: int = 2

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.grid}, {self.slicing and tuple(self.slicing)}, {self.dtype}, {self.batch}"


def cases() -> Iterator[Case]:
    for ranks in GROUPS:
        for grid, slicing in zip(GRIDS, SLICINGS, strict=True):
            yield Case(ranks, grid, slicing)
            yield Case(ranks, grid, DSP, batch=1)
        yield Case(ranks, GRIDS[-1], DEFAULT, "float32")
        if MODEL.heads % ranks == 0:
            yield Case(ranks, GRIDS[0], None)
        # On four ranks every third: frames and places leave every remainder over ranks.
        for frames in range(1, 4 * ranks + 1, 3 if ranks == 4 else 1):
            places = 4 * ranks + 1 - frames
            slicing = Slicing(min(2, frames), min(2, places), 1, frames % 2)
            yield Case(ranks, (frames, 1, places), slicing, batch=1)


@cache
def model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    dit = build_denoiser(MODEL, CHANNELS, TEXT)
    for parameter in dit.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return dit.to(dtype).requires_grad_(False)


def compared(case: Case, group: dist.ProcessGroup) -> dict[str, float]:
    dtype = getattr(torch, case.dtype)
    dit, (T, H, W) = model(dtype), case.grid
    B = case.batch
    x_BCTHW = random(B, CHANNELS, T, 2 * H, 2 * W, seed=0).to(dtype)
    mask_BM = torch.arange(5) < torch.tensor([3, 5][:B])[:, None]
    asked = (
        x_BCTHW,
        torch.tensor([0.3, 0.8][:B], dtype=dtype),
        Conditions(random(B, 5, TEXT, seed=1).to(dtype), mask_BM),
    )
    rank = dist.get_rank(group)

    def error(found: torch.Tensor) -> dict[str, float]:
        """Compare on one rank, with which the others agree in every bit."""
        if rank:
            return {}
        wide = asked[0].double(), asked[1].double(), Conditions(asked[2].context_BMD.double(), mask_BM)
        return {"out": relative(found, WholeModel(model(torch.float64))(*wide))}

    def disagreeing(found: torch.Tensor) -> int:
        others = [torch.empty_like(found, memory_format=torch.contiguous_format) for _ in range(case.ranks)]
        dist.all_gather(others, found.contiguous(), group=group)
        return sum(not torch.equal(other, found) for other in others)

    if case.slicing is None:
        found = UlyssesSTDiT(dit, group)(*asked)
        return error(found) | {"ranks that disagree": disagreeing(found)}
    watched = Watched(group)
    with count_sent_bytes() as sent:
        found = ScaleFusion(dit, group, case.slicing, watched)(*asked)
    assert found.dtype == dtype
    division = TokenDivision.of(T, H * W, case.slicing, case.ranks)
    token, value = B * HIDDEN * dtype.itemsize, B * CHANNELS * 4 * dtype.itemsize
    return error(found) | {
        "bytes": abs(sent.total - pass_bytes(division, rank, LAYERS, token, value)),
        "ranks that disagree": disagreeing(found),
        "unfinished": watched.started - watched.finished,
        "not overlapped": float(case.slicing == DEFAULT and watched.ahead < 12),
    }


class Watched(AsyncExchanges):
    """Counts exchanges, and the most that were under way at one launch."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group, torch.device("cpu"))
        self.started = self.finished = self.ahead = 0

    def start(self, *arguments):
        finish = super().start(*arguments)
        self.started += 1
        self.ahead = max(self.ahead, self.started - self.finished)

        def counted() -> None:
            finish()
            self.finished += 1

        return counted


def videos(group: dist.ProcessGroup) -> dict[str, str]:
    """Hashes of one seed's video by layout, of a float64 model."""
    shape = BUCKETS[0]
    config = TrainConfig.model_validate({**tiny_config().model_dump(), "model": MODEL.model_dump()})
    bundle = Bundle(config)
    torch.manual_seed(1)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    bundle.dit.double().requires_grad_(False)
    asked = SampleConfig(frames=shape.frames, height=shape.height, width=shape.width, steps=2, guidance=3.0)
    runners: dict[str, ModelRunner] = {
        "alone": WholeModel(bundle.dit),
        "scalefusion": ScaleFusion(bundle.dit, group, Slicing(2, 3, 1, 1)),
        "dsp": ScaleFusion(bundle.dit, group, DSP),
    }
    if MODEL.heads % dist.get_world_size(group) == 0:
        runners["ulysses"] = UlyssesSTDiT(bundle.dit, group)
    hashes = {}
    for name, runner in runners.items():
        sampler = VideoSampler(
            bundle, config.losses, asked, VideoLayout(runner, WholeDecoder(bundle.tokenizer))
        )
        passes = [
            Conditions(text.context_BMD.double(), text.mask_BM) for text in sampler.encode(["a red car"])
        ]
        video = sampler.decode(sampler.denoise(passes, [5]).float())
        assert video is not None
        assert video.float().std() > 5
        hashes[name] = hashlib.sha256(video.numpy().tobytes()).hexdigest()
    return hashes


def windowed(group: dist.ProcessGroup) -> float:
    """Error of a part of a larger video; attention sees differences of positions, which are those of a whole one."""
    dit = model(torch.float64)
    x_BCTHW, window = random(1, CHANNELS, 4, 6, 4, seed=0), Window((3, 2, 8), (9, 8, 12))
    asked = (
        x_BCTHW,
        torch.tensor([0.3], dtype=torch.float64),
        Conditions(random(1, 5, TEXT, seed=1), torch.ones(1, 5) > 0),
        window,
    )
    expected = WholeModel(dit)(*asked)
    return max(
        relative(runner(*asked), expected) for runner in (ScaleFusion(dit, group), UlyssesSTDiT(dit, group))
    )


def measured(group: dist.ProcessGroup) -> list[object]:
    """Costs of a video, which this rank's clock alone would not give, and the numbers chosen by them."""
    dit = model(torch.float32)
    x_BCTHW = torch.ones(1, CHANNELS, 7, 6, 10)
    text = Conditions(torch.ones(1, 5, TEXT), torch.ones(1, 5, dtype=torch.bool))
    costs = measure_costs(ScaleFusion(dit, group), x_BCTHW, torch.ones(1), text, repeats=1)
    runner = MeasuredScaleFusion(dit, group)
    found = [runner(x_BCTHW, torch.ones(1), text) for _ in range(2)]
    assert torch.equal(*found)
    assert relative(found[0], WholeModel(dit)(x_BCTHW, torch.ones(1), text)) < 1e-5
    [chosen] = runner.chosen.values()
    return [costs.token_s, costs.slice_s, costs.byte_s, costs.exchange_s, costs.token_bytes, chosen]


def compute(out: str, sizes: list[int]) -> None:
    """All cases of groups of these sizes."""
    torch.set_num_threads(1)
    with join("cpu") as world:
        groups = {size: dist.new_group(members) for size, members in GROUPS.items()}
        found: dict[str, object] = {
            str(case): compared(case, groups[case.ranks])
            for case in cases()
            if case.ranks in sizes and world.rank in GROUPS[case.ranks]
        }
        for size in (3, 4):
            if size in sizes and world.rank in GROUPS[size]:
                found[f"videos on {size}"] = videos(groups[size])
        found["windowed"] = windowed(groups[4])
        if world.rank in GROUPS[3]:
            found["measured"] = measured(groups[3])
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))
