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
        home: module and name of its model; imported when asked for, since some need torch.
        start: file of the package to start from; None: the defaults.
        used_by: commands that read it.
    """

    home: str
    start: Path | None
    used_by: tuple[str, ...]

    def model(self) -> type[BaseModel]:
        module, name = self.home.split(":")
        model_type: type[BaseModel] = getattr(importlib.import_module(module), name)
        return model_type

    def read_given(self, file: File, overrides: list[str]) -> Given:
        """Return the values of a file, by default those to start from, and of options."""
        return read_given(file or self.start, overrides)


KINDS = {
    "curate": Kind("reelweave.curate.config:CurateConfig", None, ("curate",)),
    "buckets": Kind(
        "reelweave.pipelines.report.buckets:ReportConfig", CONFIGS / "report.yaml", ("report", "plan")
    ),
    "train": Kind(
        "reelweave.pipelines.configuration.train_config:TrainRunConfig",
        CONFIGS / "train.yaml",
        ("train", "latents", "bench shapes", "bench cascades", "fit --cascades", "state inspect"),
    ),
    "train-vae": Kind(
        "reelweave.pipelines.configuration.train_vae_config:VaeRunConfig",
        CONFIGS / "finetune_vae.yaml",
        ("train-vae",),
    ),
}

EXAMPLES = {
    "wan-lora": ("train", CONFIGS / "finetune_wan_lora.yaml"),
    "wan22-i2v-lora": ("train", CONFIGS / "finetune_wan22_i2v_lora.yaml"),
}
"""Kind and file of examples that ``config init`` writes as they stand, with comments of their own."""
