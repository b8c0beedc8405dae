"""Find clips with an unsafe picture by an image classifier; curate_stages.yaml runs it.

reelweave config stages --set stages.safety.use=examples/stage_safety.py:Safety

Any image classifier of transformers works; `labels` says which of its classes count.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from transformers import AutoImageProcessor, AutoModelForImageClassification

from reelweave import Clip, CustomStage, StageConfig


class SafetyConfig(StageConfig):
    """Whether a clip has an unsafe picture."""

    model: str = Field("Falconsai/nsfw_image_detection", description="folder of the classifier, or its name")
    labels: tuple[str, ...] = Field(("nsfw",), description="classes that are unsafe")
    fps: float = Field(1.0, gt=0, description="pictures a second")
    gpus: float = Field(0.25, ge=0, description="share of a GPU for each worker")


class Safety(CustomStage):
    """A classifier over pictures of a clip."""

    Config = SafetyConfig
    scores: ClassVar = {"unsafe": "probability of the unsafe classes, of the worst picture"}

    @classmethod
    def models(cls, config: SafetyConfig) -> list[str]:
        return [config.model]

    def __init__(self, config: SafetyConfig, device: str) -> None:
        super().__init__(config, device)
        self.processor = AutoImageProcessor.from_pretrained(config.model, trust_remote_code=False)
        self.model = (
            AutoModelForImageClassification.from_pretrained(config.model, trust_remote_code=False)
            .eval()
            .to(device)
        )
        known = self.model.config.label2id
        if missing := [label for label in config.labels if label not in known]:
            raise ValueError(f"the model knows no label {missing[0]}; it knows {', '.join(known)}")
        self.classes = [known[label] for label in config.labels]

    @torch.inference_mode()
    def __call__(self, clips: Sequence[Clip]) -> list[dict[str, float]]:
        return [self.one(clip) for clip in clips]

    def one(self, clip: Clip) -> dict[str, float]:
        pictures = list(clip.pictures(fps=self.config.fps, size=384))
        inputs = self.processor(images=pictures, return_tensors="pt").to(self.device)
        probabilities = self.model(**inputs).logits.float().softmax(-1)
        return {"unsafe": probabilities[:, self.classes].sum(-1).max().item()}
