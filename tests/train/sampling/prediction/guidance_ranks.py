"""Rank functions: guidance shared over ranks, against one process. Findings go to OUT/RANK.json."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from reelweave.loader.errors import RunError
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World, join
from reelweave.train.models.bundle import Bundle
from reelweave.train.objectives.level import Level
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.prediction.guidance import Guided
from reelweave.train.sampling.prediction.predictor import Conditions, SchedulePoint, WholeModel
from reelweave.train.sampling.ranks.agreement import fingerprint
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from tests.train.clips import BUCKETS, tiny_config

WEIGHTS = {1: (1.0,), 2: (5.0, -4.0), 3: (3.0, 1.5, -3.5), 4: (2.0, 1.0, -0.5, -1.5)}
SHAPE = BUCKETS[0]
SIZE = {"frames": SHAPE.frames, "height": SHAPE.height, "width": SHAPE.width}
LONG = "a very long list of words that nobody wants to see in any video whatever"


def model(config: TrainConfig | None = None) -> Bundle:
    """A tiny model in float64 that knows captions and times."""
    bundle = Bundle(config or tiny_config())
    generator = torch.Generator().manual_seed(0)
    for parameter in bundle.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    bundle.dit.double()
    bundle.text.double()
    return bundle.eval()


class Counting:
    """A runner that counts its passes."""

    def __init__(self, bundle: Bundle) -> None:
        self.run, self.calls = WholeModel(bundle.dit), 0

    def __call__(self, x_BCTHW, timestep_input_B, conditions, window=None):
        self.calls += len(timestep_input_B) // 2
        return self.run(x_BCTHW, timestep_input_B, conditions, window)


def guided(bundle: Bundle, group: World | None, passes: int, **options) -> tuple[torch.Tensor, int]:
    """The guided prediction of two videos, and how many passes this rank ran."""
    generator = torch.Generator().manual_seed(1)
    x_BCTHW = torch.randn(2, 24, 3, 8, 8, generator=generator, dtype=torch.float64)
    level: Level = bundle.objective.level(torch.tensor([0.7]))
    texts = [LONG, "red", "", "blue and green"][:passes]
    context_BMD, mask_BM = bundle.text([text for text in texts for _ in range(2)])
    conditions = [Conditions(*pair) for pair in zip(context_BMD.split(2), mask_BM.split(2), strict=True)]
    run = Counting(bundle)
    predict = Guided(run, conditions, WEIGHTS[passes], group, **options)
    return predict(x_BCTHW, SchedulePoint(0, 1, level)), run.calls


def predictions(bundle: Bundle, groups: dict[int, World]) -> Iterator[tuple[int, bool]]:
    alone_by_passes = {passes: guided(bundle, None, passes)[0] for passes in WEIGHTS}
    rescaled_by_passes = {passes: guided(bundle, None, passes, rescale=0.7)[0] for passes in WEIGHTS}
    for size, group in groups.items():
        for passes, alone in alone_by_passes.items():
            found, calls = guided(bundle, group, passes)
            yield f"{passes} on {size}: same bits", torch.equal(found, alone)
            most = -(-passes // size)
            yield f"{passes} on {size}: no pass twice", calls in ((1,) if passes == 1 else (most, most - 1))
            together, _ = guided(bundle, group, passes, batched=True)
            yield f"{passes} on {size}: batched", torch.allclose(together, alone, rtol=1e-10, atol=1e-10)
            scaled, _ = guided(bundle, group, passes, rescale=0.7)
            yield f"{passes} on {size}: rescaled", torch.equal(scaled, rescaled_by_passes[passes])


def videos(bundle: Bundle, world: World) -> Iterator[tuple[int, bool]]:
    """Whole videos on every grid of guidance, against one process; prompts of other lengths, and few steps."""
    for name, options in {
        "guided": {"guidance": 3.0, "negative_prompt": LONG, "rescale": 0.5, "solver": "unipc"},
        "alone": {"guidance": 1.0, "solver": "res"},
        "few": {"guidance": 2.0, "solver": "few_step", "timesteps": (1.0, 0.7, 0.3)},
    }.items():
        steps = {} if "timesteps" in options else {"steps": 3}
        config = SampleConfig(**SIZE, **steps, **options)

        def made(layout: VideoLayout, config: SampleConfig = config) -> tuple[int, bool]:
            sampler = VideoSampler(bundle, tiny_config().losses, config, layout)
            latents = sampler.denoise(sampler.encode(["a wave"]), [7])
            return int(fingerprint(latents)), sampler.decode(latents) is not None

        expected, _ = made(VideoLayout.alone(bundle))
        for degrees in ({"cfg": 2}, {"cfg": 4}):
            layout_config = SampleLayoutConfig(**degrees)
            ranks = SamplingRanks(SamplingMesh.of(layout_config, world.size), world)
            found, has_video = made(build_layout(bundle, ranks, layout_config))
            yield f"video, {name}, {degrees}: same bits", found == expected
            yield f"video, {name}, {degrees}: on the first rank", has_video == (ranks.video.rank == 0)


def compute(out: str) -> None:
    """All cases of four ranks."""
    with join("cpu") as world, torch.no_grad():
        bundle, found = model(), {}
        groups: dict[int, World] = {}
        for size in (1, 2, 3, 4):
            members = list(range(size))
            group = dist.new_group(members)
            if world.rank in members:
                groups[size] = World(world.rank, size, world.device, group)
        found |= dict(predictions(bundle, groups))
        found |= dict(videos(bundle, world))
        sampler = VideoSampler(
            bundle,
            tiny_config().losses,
            SampleConfig(**SIZE, steps=1),
            VideoLayout(WholeModel(bundle.dit), lambda latents: None, video=world),
        )
        try:
            sampler.denoise(sampler.encode(["a wave"]), [world.rank // 3])
            said = ""
        except RunError as error:
            said = str(error)
        found["another seed on a rank is told"] = "noise" in said and "other bits than rank 0: rank 3" in said
        (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))
