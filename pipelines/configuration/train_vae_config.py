"""The whole configuration of ``reelweave train-vae``; needs torch, so the command imports it when it runs."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from loader.read.stream_config import StreamConfig
from loader.settings import Settings
from loader.storage import StorageConfig
from train.config.vae import VaeTrainConfig
from train.vae.quality import SSIM_LEAST_PX


class LookConfig(Settings):
    """Clips that are not trained on, whose reconstructions are measured and shown now and then."""

    dataset: str = Field(description="folder or s3:// prefix of a finished dataset, streamed like the other")
    every_steps: int = Field(
        500, ge=1, description="optimizer steps between two looks; there is one before the first"
    )
    steps: int = Field(4, ge=1, description="steps of its first epoch that are looked at, at most")
    shown: int = Field(4, ge=1, description="clips of rank 0 in the picture, at most")


class VaeRunConfig(Settings):
    """Where the clips are, how they stream, what is trained."""

    dataset: str = Field(description="folder or s3:// prefix of a finished dataset")
    out: Path = Field(
        description="folder for metrics, pictures and TensorBoard events, and for checkpoints by default"
    )
    checkpoints: str | None = Field(None, description="folder or s3:// prefix of the checkpoints alone")
    stream: StreamConfig
    train: VaeTrainConfig
    held_out: LookConfig | None = Field(
        None, description="measure and show reconstructions of other clips; null does neither"
    )
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _stream_fits(self) -> Self:
        counted, made = self.stream.buckets.compression, self.train.compression
        if counted != made:
            raise ValueError(
                f"stream.buckets.compression must be {made.model_dump()}: what train.model makes of a clip"
            )
        if self.stream.regime == "pack":
            raise ValueError("stream.regime pack is for transformers of ours; a tokenizer takes no packs")
        if not self.stream.decode:
            raise ValueError("stream.decode must be true: training needs pixels")
        return self

    @model_validator(mode="after")
    def _frames_are_large_enough(self) -> Self:
        losses, least_px = self.train.losses, min(min(size) for size in self.stream.buckets.sizes)
        needed = {
            "train.losses.lpips": losses.lpips.least_px if losses.lpips else 0,
            "train.losses.gan": losses.gan.least_px if losses.gan else 0,
            "held_out, for SSIM,": SSIM_LEAST_PX if self.held_out else 0,
        }
        for who, least in needed.items():
            if least_px < least:
                raise ValueError(
                    f"{who} needs frames of at least {least} pixels a side; stream.buckets.sizes has {least_px}"
                )
        return self
