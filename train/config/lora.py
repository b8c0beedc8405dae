"""Configuration of LoRA adapters."""

from pydantic import Field

from reelweave.loader.settings import Settings


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
