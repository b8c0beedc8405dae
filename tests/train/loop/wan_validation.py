"""Runs of tiny Wan models with validation from pictures, by two experts, on one rank or several."""

from pathlib import Path

import torch

from reelweave.train.distributed.world import join
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from reelweave.train.loop.validation_config import ValidationConfig
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.prediction.first_frames import read_first_frames
from reelweave.train.sampling.trained.load import Trained, load_trained
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop.validation_runs import raw
from tests.train.models.wan_pipelines import configured

CPU = torch.device("cpu")
IMPORTED_FIRST = (
    "diffusers.models.transformers",
    "diffusers.models.autoencoders",
    "peft",
    "reelweave.train.models.published.families.wan",
    "reelweave.train.models.published.vae",
)


def asked(folder: str, rows: list[dict[str, str]], **update) -> ValidationConfig:
    size = {"frames": 5, "height": 16, "width": 16, "steps": 3, "guidance": 3.0, "seed": 7}
    images = [row | ({"image": str(Path(folder) / row["image"])} if "image" in row else {}) for row in rows]
    return ValidationConfig.model_validate({"prompts": images, "every_steps": 1, **size, **update})


def sampled(trained: Trained, pictures: str, rows: list[dict[str, str]]) -> list[bytes]:
    """Videos as `reelweave sample` makes them."""
    config = SampleConfig(**asked(pictures, rows).model_dump(include=SampleConfig.model_fields.keys()))
    own = VideoSampler(
        trained.bundle, trained.config.losses, config, VideoLayout.alone(trained.bundle, trained.experts)
    )
    made = []
    for number, row in enumerate(rows):
        given = None
        if "image" in row:
            picture = Path(pictures) / row["image"]
            given = own.encode_frames(read_first_frames(picture, 1, (16, 16), row["image"]))
        latents = own.denoise(own.encode([row["prompt"]]), [7 + number], lambda: None, given)
        made.append(own.decode(latents)[0].numpy().tobytes())
    return made


def sample(
    out: str, checkpoint: str, pictures: str, rows: list[dict[str, str]], other: str | None = None
) -> None:
    """Videos of a run as `reelweave sample` makes them, in files; the other expert may be one that was trained."""
    torch.set_num_threads(1)
    trained = with_experts(load_trained(checkpoint, CPU), CPU, checkpoint=other)
    for number, video in enumerate(sampled(trained, pictures, rows)):
        (Path(out) / f"{number}.raw").write_bytes(video)


def run(
    out: str, published: str, form: str, pictures: str, rows: list[dict[str, str]], parallel: dict, more: dict
):
    """A step of adapters, and the videos behind it."""
    torch.set_num_threads(1)
    own = tiny_config(1, every_steps=1, lr=1e-2)
    update = {"schedule": own.schedule, "optimizer": own.optimizer, "checkpoint": own.checkpoint}
    model = {"subfolder": more.pop("subfolder", "transformer")}
    config = configured(published, form, **update, model=model, lora={"rank": 4}, parallel=parallel)
    with join("cpu") as world:
        stream = ClipStream(world.rank, world.size)
        validation = Validation(asked(pictures, rows, **more), raw) if rows else None
        Trainer(config, stream, Path(out), validation=validation).run()
