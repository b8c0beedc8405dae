"""Configuration of checkpoints, and of the weights that a new run begins with."""

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


class StartFromConfig(Settings):
    """Weights of another run that a new one begins with, at step 0; a resume does not read them again."""

    source: str = Field(
        min_length=1,
        description="folder or s3:// prefix of a run, for its newest checkpoint, or of one checkpoint; or what"
        " `reelweave export` wrote: a folder or a .safetensors file. Alone, it may stand for the section",
    )
    weights: Literal["ema", "model"] | None = Field(
        None, description="group of weights of a checkpoint; null: the EMA if there is one, else model"
    )
    optimizer: Literal["fresh", "kept"] = Field(
        "fresh",
        description="fresh: the optimizer begins anew; kept: it goes on with the moments and step counts of the"
        " checkpoint, for weights model and an unchanged model",
    )

    @model_validator(mode="after")
    def _moments_belong_to_the_last_weights(self) -> "StartFromConfig":
        if self.optimizer == "kept" and self.weights == "ema":
            raise ValueError(
                "optimizer kept has moments of the last weights, not of their average: set weights to model, or"
                " optimizer to fresh"
            )
        return self
