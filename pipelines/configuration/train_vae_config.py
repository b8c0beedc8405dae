"""Whole configuration of ``reelweave train-vae``; imports torch, so the command imports it when it runs."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.settings import Settings
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.configuration.bucket_shapes import check_bucket_shapes
from reelweave.train.config.vae import SSIM_MIN_PX, VaeTrainConfig


class LookConfig(Settings):
    """Held-out clips, whose reconstructions are measured and shown at intervals."""

    dataset: str | None = Field(
        default=None,
        description="folder or s3:// prefix of the held-out dataset, streamed like the other; null: the other part of"
        " stream.split",
    )
    every_steps: int = Field(
        500, ge=1, description="optimizer steps between measurements; one is made before the first step"
    )
    steps: int = Field(4, ge=1, description="most steps of its first epoch to measure")
    shown: int = Field(4, ge=1, description="most clips of rank 0 in the picture")


class VaeRunConfig(Settings):
    """Data, streaming and training of a run."""

    dataset: str = Field(description="folder or s3:// prefix of a finished dataset")
    out: Path = Field(
        description="folder for metrics, pictures, TensorBoard events and, by default, checkpoints"
    )
    checkpoints: str | None = Field(None, description="folder or s3:// prefix for checkpoints; null: in out")
    stream: StreamConfig
    train: VaeTrainConfig
    held_out: LookConfig | None = Field(
        None, description="held-out clips whose reconstructions are measured and shown; null: none"
    )
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _held_out_clips_are_others(self) -> Self:
        if self.held_out and not self.held_out.dataset and not self.stream.split:
            raise ValueError(
                "held_out needs a dataset of other clips, or stream.split, whose val part is then held out"
            )
        return self

    @model_validator(mode="after")
    def _stream_fits(self) -> Self:
        counted, vae_compression = self.stream.buckets.compression, self.train.compression
        if counted != vae_compression:
            raise ValueError(
                f"stream.buckets.compression must be {vae_compression.model_dump()}: what train.model makes of a clip"
            )
        if self.stream.regime == "pack":
            raise ValueError("stream.regime pack is for transformers of ours; a tokenizer takes no packs")
        if not self.stream.decode:
            raise ValueError("stream.decode must be true: training needs pixels")
        check_bucket_shapes(
            self.stream, (vae_compression.frames, vae_compression.height, vae_compression.width)
        )
        return self

    @model_validator(mode="after")
    def _frames_are_large_enough(self) -> Self:
        losses, least_px = self.train.losses, min(min(size) for size in self.stream.buckets.sizes)
        needed = {
            "train.losses.lpips": losses.lpips.least_px if losses.lpips else 0,
            "train.losses.gan": losses.gan.least_px if losses.gan else 0,
            "held_out, for SSIM,": SSIM_MIN_PX if self.held_out else 0,
        }
        for who, min_px in needed.items():
            if least_px < min_px:
                raise ValueError(
                    f"{who} needs frames of at least {min_px} pixels a side; stream.buckets.sizes has {least_px}"
                )
        return self
