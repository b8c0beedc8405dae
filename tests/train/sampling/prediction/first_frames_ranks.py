"""Rank function: image to video over several ranks, against one process; errors go to OUT/RANK.json."""

import json
from pathlib import Path

import torch

from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from tests.train.clips import BUCKETS, clip, tiny_config
from tests.train.comparison import relative

KINDS = ("dit", "st_dit", "mmdit")
DEGREES = ({"ring": 2, "ulysses": 2}, {"cfg": 2, "ring": 2})


def compute(out: str) -> None:
    shape, found = BUCKETS[0], {}
    asked = SampleConfig(
        frames=shape.frames, height=shape.height, width=shape.width, steps=2, guidance=3.0, image_guidance=2.0
    )
    with join("cpu") as world:
        for kind in KINDS:
            model = {"kind": kind, "hidden": 24, "heads": 4, "layers": 2}
            config = TrainConfig.model_validate(
                {**tiny_config().model_dump(), "model": model, "first_frames": {}}
            )
            bundle = Bundle(config)
            torch.manual_seed(0)
            for parameter in bundle.dit.parameters():
                torch.nn.init.normal_(parameter, std=0.2)
            bundle.dit.double()
            bundle.text.double()

            def latents(layout, bundle=bundle, config=config):
                sampler = VideoSampler(bundle, config.losses, asked, layout)
                given = sampler.encode_frames(clip(0, shape)[None, :, :1])
                return sampler.denoise(sampler.encode(["up"]), [0], lambda: None, given)

            expected = latents(VideoLayout.alone(bundle))
            for degrees in DEGREES:
                layout_config = SampleLayoutConfig(**degrees)
                ranks = SamplingRanks(SamplingMesh.of(layout_config, world.size), world)
                layout = build_layout(bundle, ranks, layout_config)
                found[f"{kind}, {degrees}"] = relative(latents(layout), expected)
        Path(out, f"{world.rank}.json").write_text(json.dumps(found))
