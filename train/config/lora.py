"""Configuration of LoRA adapters."""

from pathlib import Path

from pydantic import Field

from reelweave.loader.settings import Settings

LORA_FILE = "pytorch_lora_weights.safetensors"
"""Name that diffusers gives a file of adapters."""


class LoraConfig(Settings):
    """LoRA adapters, the only weights that are then trained, averaged and saved (`reelweave.train.models.lora`)."""

    rank: int = Field(16, ge=1, description="rank of each adapter")
    alpha: float = Field(16.0, gt=0, description="scale: an adapter's output is multiplied by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="suffixes of the names of layers to adapt; empty: the projections of attention"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="dropout on inputs of adapters; its random numbers follow from seed, step and data-parallel rank",
    )
    checkpoint: str | None = Field(
        None,
        description="base weights: the folder of a run of `reelweave train`, or of one of its checkpoints",
    )


def adapters_file(path: Path) -> Path:
    """Return the file of adapters that a path names: itself, or `LORA_FILE` of a folder."""
    return path / LORA_FILE if path.is_dir() else path
