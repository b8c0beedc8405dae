"""The configuration of checkpoints: when they are written and which are kept."""

from pydantic import BaseModel, Field, model_validator


class CheckpointConfig(BaseModel, frozen=True, extra="forbid"):
    """When checkpoints are written and how many stay; the last step always writes one."""

    every_steps: int = Field(500, ge=1, description="steps between checkpoints")
    keep_last: int = Field(3, ge=1, description="newest checkpoints that are kept")
    keep_every: int | None = Field(
        None, ge=1, description="checkpoints of these steps stay for good; a multiple of every_steps"
    )
    background: bool = Field(True, description="train on while a checkpoint is written")

    @model_validator(mode="after")
    def _kept_ones_are_written(self) -> "CheckpointConfig":
        if self.keep_every and self.keep_every % self.every_steps:
            raise ValueError(
                f"keep_every ({self.keep_every}) must be a multiple of every_steps ({self.every_steps})"
            )
        return self
