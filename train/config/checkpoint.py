"""Configuration of checkpoints."""

from typing import Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings


class CheckpointConfig(Settings):
    """Checkpoint interval and retention; the last step always writes a checkpoint."""

    every_steps: int = Field(500, ge=1, description="steps between checkpoints")
    keep_last: int = Field(3, ge=1, description="number of newest checkpoints to keep")
    keep_every: int | None = Field(
        None, ge=1, description="keep the checkpoints of every such step forever; a multiple of every_steps"
    )
    background: bool = Field(True, description="write checkpoints in the background while training goes on")
    max_wait_s: float = Field(
        60.0,
        ge=0,
        description="longest wait of a step for the checkpoint before, seconds. If that is not written by then, as"
        " where storage stalls, the step's own checkpoint is left out",
    )

    changed_parts: Literal["refuse", "accept"] = Field(
        "refuse",
        description="what a resume does where files of a frozen part, such as the VAE, were replaced. accept: go on"
        " with the new files and a warning; later checkpoints are of these",
    )

    @model_validator(mode="after")
    def _kept_ones_are_written(self) -> "CheckpointConfig":
        if self.keep_every and self.keep_every % self.every_steps:
            raise ValueError(
                f"keep_every ({self.keep_every}) must be a multiple of every_steps ({self.every_steps})"
            )
        return self
