"""Compare clips with their captions by CLIP, or by SigLIP; curate_stages.yaml runs it.

reelweave config stages --set stages.match.use=examples/stage_caption_match.py:CaptionMatch

Choose filters.min_text_match by the histogram in the report: each model has its own scale. Where a model writes the
captions, only kept clips are compared, once they have one.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from reelweave import Clip, CustomStage, Fault, StageConfig


class CaptionMatchConfig(StageConfig):
    """Whether a clip shows what its caption says."""

    model: str = Field("openai/clip-vit-base-patch32", description="folder of a CLIP or SigLIP, or its name")
    pictures: int = Field(8, ge=1, description="pictures of a clip")
    gpus: float = Field(0.25, ge=0, description="share of a GPU for each worker")


class CaptionMatch(CustomStage):
    """CLIP over a caption and some pictures of its clip."""

    Config = CaptionMatchConfig
    scores: ClassVar = {"text_match": "cosine of the caption and the mean of the pictures, -1 to 1"}
    reads_caption = True

    @classmethod
    def models(cls, config: CaptionMatchConfig) -> list[str]:
        return [config.model]

    def __init__(self, config: CaptionMatchConfig, device: str) -> None:
        super().__init__(config, device)
        self.processor = AutoImageProcessor.from_pretrained(config.model, trust_remote_code=False)
        self.tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
        self.model = AutoModel.from_pretrained(config.model, trust_remote_code=False).eval().to(device)
        self.tokens = self.model.config.text_config.max_position_embeddings

    @torch.inference_mode()
    def __call__(self, clips: Sequence[Clip]) -> list[dict[str, float] | Fault]:
        return [self.one(clip) if clip.caption else Fault("it has no caption") for clip in clips]

    def one(self, clip: Clip) -> dict[str, float]:
        pictures = list(clip.pictures(self.config.pictures, size=384))
        image = self.processor(images=pictures, return_tensors="pt").to(self.device)
        padded = {"padding": "max_length", "truncation": True, "max_length": self.tokens}
        words = self.tokenizer(clip.caption, **padded, return_tensors="pt").to(self.device)
        seen = self.unit(self.model.get_image_features(**image)).mean(0, keepdim=True)
        said = self.unit(self.model.get_text_features(**words))
        return {"text_match": torch.cosine_similarity(seen, said).item()}

    def unit(self, found: Any) -> torch.Tensor:
        return torch.nn.functional.normalize(getattr(found, "pooler_output", found).float(), dim=-1)
