"""Embed clips by SigLIP 2, and score their looks by a head over it; curate_stages.yaml runs it.

reelweave config stages --set stages.siglip2.use=examples/stage_siglip2.py:Siglip2

With embed.backend=stages.siglip2 `search --like KEY`, the report's map and semantic deduplication use its vectors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModel

from reelweave import Clip, CustomStage, Embedded, StageConfig


class Siglip2Config(StageConfig):
    """Vectors of SigLIP 2, and an aesthetic score."""

    model: str = Field("google/siglip2-base-patch16-224", description="folder of the model, or its name")
    head: str = Field("", description="file with `weight` [1, D] and `bias` [1] of an aesthetic head")
    pictures: int = Field(8, ge=1, description="pictures of a clip")
    gpus: float = Field(0.25, ge=0, description="share of a GPU for each worker")


class Siglip2(CustomStage):
    """SigLIP 2 over some pictures of a clip."""

    Config = Siglip2Config
    scores: ClassVar = {"beauty": "head's score, mean over pictures; without a head there is none"}
    embeds = True

    @classmethod
    def models(cls, config: Siglip2Config) -> list[str]:
        return [name for name in (config.model, config.head) if name]

    def __init__(self, config: Siglip2Config, device: str) -> None:
        super().__init__(config, device)
        self.processor = AutoImageProcessor.from_pretrained(config.model)
        self.model = AutoModel.from_pretrained(config.model).eval().to(device)
        self.head = load_file(Path(config.head), device) if config.head else None

    @torch.inference_mode()
    def __call__(self, clips: Sequence[Clip]) -> list[Embedded]:
        return [self.one(clip) for clip in clips]  # a picture's numbers depend on no other clip

    def one(self, clip: Clip) -> Embedded:
        pictures = list(clip.pictures(self.config.pictures, size=384))
        inputs = self.processor(images=pictures, return_tensors="pt").to(self.device)
        found = self.model.get_image_features(**inputs)
        vectors = torch.nn.functional.normalize(getattr(found, "pooler_output", found).float(), dim=-1)
        scores = {}
        if self.head is not None:
            by_picture = torch.nn.functional.linear(vectors, self.head["weight"], self.head["bias"])
            scores["beauty"] = by_picture.mean().item()
        return Embedded(vectors.mean(0).cpu().numpy(), scores)
