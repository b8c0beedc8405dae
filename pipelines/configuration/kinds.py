"""Configurations that a person writes, by the name that `reelweave config` gives them."""

import importlib
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from reelweave.pipelines.configuration.config import File, Given, read_given

CONFIGS = Path(__file__).parent.parent / "configs"


class Kind(NamedTuple):
    """One kind of configuration.

    Attributes:
        home: module and name of its model; imported by `model`, since all together take a second.
        start: file of the package to start from; None: the defaults.
        used_by: commands that read it.
        purpose: line that says what is in it.
    """

    home: str
    start: Path | None
    used_by: tuple[str, ...]
    purpose: str

    def model(self) -> type[BaseModel]:
        module, name = self.home.split(":")
        model_type: type[BaseModel] = getattr(importlib.import_module(module), name)
        return model_type

    def read_given(self, file: File, overrides: list[str]) -> Given:
        """Return the values of a file, by default those to start from, and of options."""
        return read_given(file or self.start, overrides)


KINDS = {
    "curate": Kind(
        "reelweave.curate.config:CurateConfig",
        None,
        ("curate",),
        "clips, scores, thresholds, captions, duplicates, shards",
    ),
    "buckets": Kind(
        "reelweave.pipelines.report.buckets:ReportConfig",
        CONFIGS / "report.yaml",
        ("report", "plan"),
        "shapes, memory and costs of a step, for reports and plans",
    ),
    "train": Kind(
        "reelweave.pipelines.configuration.train_config:TrainRunConfig",
        CONFIGS / "train.yaml",
        ("train", "latents", "bench shapes", "bench cascades", "fit --cascades", "state inspect"),
        "a small model for one GPU: stream, model, optimizer, layout, checkpoints",
    ),
    "train-vae": Kind(
        "reelweave.pipelines.configuration.train_vae_config:VaeRunConfig",
        CONFIGS / "finetune_vae.yaml",
        ("train-vae",),
        "fine-tuning of a published video tokenizer",
    ),
}


class Example(NamedTuple):
    """File that ``config init`` writes as it stands, with comments of its own.

    Attributes:
        kind: kind of its configuration.
        file: the file.
        purpose: line that says what it is for.
    """

    kind: str
    file: Path
    purpose: str


EXAMPLES = {
    "wan-lora": Example(
        "train", CONFIGS / "finetune_wan_lora.yaml", "LoRA on Wan2.1-T2V-1.3B at 480p, text to video"
    ),
    "wan22-i2v-lora": Example(
        "train",
        CONFIGS / "finetune_wan22_i2v_lora.yaml",
        "LoRA on an expert of Wan2.2-I2V-A14B at 480p, image to video",
    ),
    "wan22-t2v-lora": Example(
        "train",
        CONFIGS / "finetune_wan22_t2v_lora.yaml",
        "LoRA on an expert of Wan2.2-T2V-A14B at 480p, text to video",
    ),
    "wan22-5b-lora": Example(
        "train",
        CONFIGS / "finetune_wan22_5b_lora.yaml",
        "LoRA on Wan2.2-TI2V-5B at 704 x 1280, text to video",
    ),
    "hunyuan-lora": Example(
        "train", CONFIGS / "finetune_hunyuan_lora.yaml", "LoRA on HunyuanVideo at 544 x 960, text to video"
    ),
    "cogvideox-lora": Example(
        "train", CONFIGS / "finetune_cogvideox_lora.yaml", "LoRA on CogVideoX-5B at 480 x 720, text to video"
    ),
    "cosmos1-lora": Example(
        "train",
        CONFIGS / "finetune_cosmos1_lora.yaml",
        "LoRA on Cosmos-1.0-Diffusion-7B-Text2World at 704 x 1280, text to video",
    ),
}
"""Examples by name."""
