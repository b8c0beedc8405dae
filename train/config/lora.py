"""Configuration of LoRA adapters."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from reelweave.loader.settings import Settings

LORA_FILE = "pytorch_lora_weights.safetensors"
"""Name that diffusers gives a file of adapters."""
PEFT_FILE, PEFT_SETTINGS = "adapter_model.safetensors", "adapter_config.json"
"""Names that PEFT gives a file of adapters, and that of their settings beside it."""


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
    start_from: Path | None = Field(
        None,
        description="adapters to begin with, of any tool, for published models: a safetensors file or its folder"
        " (docs/finetune.md); of the same rank and layers. null: new ones, which change nothing yet",
    )
    base_dtype: Literal["float8", "nf4"] | None = Field(
        None,
        description="type that the frozen weights of blocks' linear layers are rounded to and held in: 8 bits, or 4.25"
        " (QLoRA); products are in dtype. null: as they are",
    )
    checkpoint: str | None = Field(
        None,
        description="base weights: the folder of a run of `reelweave train`, or of one of its checkpoints",
    )


def adapters_file(path: Path) -> Path:
    """Return the file of adapters that a path names: itself, or that of a folder.

    In a folder it is the file of diffusers or of PEFT, or the only safetensors file; with none of these, the file that
    diffusers would have there.
    """
    if not path.is_dir():
        return path
    for name in (LORA_FILE, PEFT_FILE):
        if (path / name).is_file():
            return path / name
    files = sorted(path.glob("*.safetensors"))
    return files[0] if len(files) == 1 else path / LORA_FILE


def adapters_files(path: Path) -> list[Path]:
    """Return all files that adapters follow from: theirs, and PEFT's settings beside it."""
    file = adapters_file(path)
    settings = file.parent / PEFT_SETTINGS
    return [file, settings] if file.name == PEFT_FILE and settings.is_file() else [file]
