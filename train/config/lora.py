"""The configuration of low-rank adapters."""

from pydantic import BaseModel, Field


class LoraConfig(BaseModel, frozen=True, extra="forbid"):
    """Low-rank adapters: they are trained, averaged and saved, and nothing else (`train.models.lora`)."""

    rank: int = Field(16, ge=1, description="of each adapter's two matrices")
    alpha: float = Field(16.0, gt=0, description="an adapter's output counts alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="layers that get one, by the end of their names; empty: the projections of attention"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of an adapter's inputs that are dropped; not the same after a resume",
    )
    checkpoint: str | None = Field(
        None, description="folder of a run of ours, or of one of its checkpoints, whose weights are adapted"
    )
