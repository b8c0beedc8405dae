"""Rank function: Wan's image-to-video models and experts over several ranks; errors go to OUT/RANK.json."""

import json
from pathlib import Path

import torch

from reelweave.train.distributed.world import join
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from reelweave.train.sampling.trained.load import load_published
from tests.train.comparison import relative
from tests.train.models.wan_pipelines import IMAGE, configured

IMPORTED_FIRST = ("diffusers.models.transformers", "diffusers.models.autoencoders")
CASES = (
    ("2.2 A14B I2V", {"cfg": 2, "ring": 2}),
    ("2.2 TI2V 5B", {"ring": 2, "ulysses": 2}),
    ("2.2 A14B T2V", {"lp": 2, "ring": 2, "latent_parallel": {"exact_steps": 3}}),
)


def compute(out: str) -> None:
    folders, found = json.loads(Path(out, "folders.json").read_text()), {}
    draw = torch.Generator().manual_seed(3)
    picture = torch.randint(0, 256, (1, 3, 1, 32, 48), generator=draw, dtype=torch.uint8)
    asked = SampleConfig(frames=9, height=32, width=48, steps=3, guidance=3.0)
    with join("cpu") as world:
        for form, degrees in CASES:
            trained = with_experts(
                load_published(configured(folders[form], form), world.device), world.device
            )
            bundle, pair = trained.bundle, trained.experts
            for dit in (bundle.dit,) if pair is None else (pair.high_noise, pair.low_noise):
                dit.double()
            bundle.text.double()

            def latents(layout, trained=trained, form=form):
                sampler = VideoSampler(trained.bundle, trained.config.losses, asked, layout)
                given = sampler.encode_frames(picture) if form in IMAGE else None
                return sampler.denoise(sampler.encode(["a cat"]), [0], lambda: None, given)

            expected = latents(VideoLayout.alone(bundle, pair))
            config = SampleLayoutConfig.model_validate(degrees)
            ranks = SamplingRanks(SamplingMesh.of(config, world.size), world)
            layout = build_layout(bundle, ranks, config, experts=pair)
            found[f"{form}, {degrees}"] = relative(latents(layout), expected)
        Path(out, f"{world.rank}.json").write_text(json.dumps(found))
