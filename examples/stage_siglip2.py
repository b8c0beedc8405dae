"""Embed clips by SigLIP 2, and score their looks by a head over it; curate_stages.yaml runs it.

reelweave config stages --set stages.siglip2.use=examples/stage_siglip2.py:Siglip2
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import ClassVar

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch.nn.functional import linear, normalize
from transformers import AutoImageProcessor, AutoModel

from reelweave import Clip, CustomStage, Embedded, StageConfig


class Siglip2Config(StageConfig):
    """Vectors of SigLIP 2, and an aesthetic score."""

    model: str = Field("google/siglip2-base-patch16-224", description="folder of the model, or its name")
    head: str = Field("", description="file with `weight` [1, D] and `bias` [1] of an aesthetic head")
    pictures: int = Field(8, ge=1, description="pictures of a clip")
    gpus: float = Field(0.25, ge=0, description="share of a GPU for each worker")


processor = cache(partial(AutoImageProcessor.from_pretrained, trust_remote_code=False))


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
        self.model = AutoModel.from_pretrained(config.model, trust_remote_code=False).eval().to(device)
        self.head = load_file(config.head, device) if config.head else None

    @classmethod
    def prepare(cls, config: Siglip2Config, clip: Clip) -> torch.Tensor:  # ahead, while the GPU works
        pictures = list(clip.pictures(config.pictures, size=384))
        return processor(config.model)(images=pictures, return_tensors="pt")["pixel_values"]

    def __call__(self, clips: Sequence[Clip]) -> list[Embedded]:
        return [self.one(clip) for clip in clips]  # a picture's numbers depend on no other clip

    @torch.inference_mode()
    def one(self, clip: Clip) -> Embedded:
        found = self.model.get_image_features(clip.prepared.to(self.device))
        vectors = normalize(getattr(found, "pooler_output", found).float(), dim=-1)
        given = {} if self.head is None else {"beauty": linear(vectors, **self.head).mean().item()}
        return Embedded(vectors.mean(0).cpu().numpy(), given)
