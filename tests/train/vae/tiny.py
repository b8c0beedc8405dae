"""Tiny published VAEs, runs that fine-tune them, and rank functions."""

import os
from pathlib import Path

import torch

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import RunError
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.vae.trainer import VaeTrainer
from tests.train import clips
from tests.train.clips import ClipStream

SHAPES = (Bucket(5, 16, 16), Bucket(1, 24, 16), Bucket(9, 12, 16))
SIZES = {
    "AutoencoderKLWan": {
        "base_dim": 4,
        "z_dim": 4,
        "num_res_blocks": 1,
        "dim_mult": [1, 1],
        "temperal_downsample": [True],
        "scale_factor_spatial": 2,
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
    "AutoencoderKLCosmos": {
        "encoder_block_out_channels": (8, 8, 8, 8),
        "decode_block_out_channels": (8, 8, 8, 8),
        "latent_channels": 4,
        "num_layers": 1,
        "attention_resolutions": (16,),
        "resolution": 32,
        "patch_size": 2,
        "spatial_compression_ratio": 4,
        "temporal_compression_ratio": 4,
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
}
GAN = {
    "start_step": 3, "warmup_steps": 1, "adaptive": True, "r1": 0.1, "lecam": 0.1, "channels": 8, "layers": 1,
}  # fmt: skip


WAN, COSMOS = "AutoencoderKLWan", "AutoencoderKLCosmos"
IMPORTED_FIRST = ("diffusers.models.autoencoders",)


def publish(folder: Path, kind: str = WAN, **changes):
    """A drawn VAE in a folder of its own, and the VAE."""
    import diffusers

    torch.manual_seed(0)
    vae = getattr(diffusers, kind)(**SIZES[kind] | changes)
    vae.save_pretrained(folder / "vae")
    return vae.eval()


def config(folder: Path, steps: int = 6, model: dict | None = None, **changes) -> VaeTrainConfig:
    """A run on the VAE that was published there."""
    settings = {
        "model": {"name": str(folder), "frames": 2, "height": 2, "width": 2} | (model or {}),
        "optimizer": {"lr": 3e-3},
        "schedule": {"total_steps": steps, "warmup_steps": 1},
        "checkpoint": {"every_steps": 4, "background": False},
        "log": {"tensorboard": False},
        "device": "cpu",
    }
    return VaeTrainConfig.model_validate(settings | changes)


class MixedStream(ClipStream):
    """Clips of 5 and 9 frames and pictures, by step; ends before a step, where one is given."""

    ends_before: int | None = None

    def microbatch(self, step, slot=0):
        before, clips.BUCKETS = clips.BUCKETS, (SHAPES[step % 3],) * 2
        try:
            return super().microbatch(step, slot)
        finally:
            clips.BUCKETS = before

    def __iter__(self):
        for batch in super().__iter__():
            if batch.step == self.ends_before:
                return
            yield batch


def run(folder: str, out: str, ends_before: int | None = None, split: bool = False) -> None:
    """A run in float64 with all terms but LPIPS; ``split``: rank 0 has microbatches of 2 and 1, rank 1 one of 1."""
    torch.set_default_dtype(torch.float64)
    rank = int(os.environ.get("RANK", "0"))
    sizes, first = ((2, 1), 0) if rank == 0 else ((1,), 3)
    stream = MixedStream(sizes=sizes, first=first) if split else MixedStream()
    stream.ends_before = ends_before
    settings = config(
        Path(folder),
        7,
        losses={"l1": {"start_step": 2}, "kl": {"weight": 1e-3}, "gan": GAN},
        ema={"decay": 0.5},
    )
    try:
        VaeTrainer(settings, stream, Path(out)).run()
    except RunError:
        if ends_before is None:
            raise
    finally:
        torch.set_default_dtype(torch.float32)
