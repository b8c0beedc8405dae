"""Configuration of videos sampled during training; importing it loads no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from loader.errors import UsageError
from train.sampling.config import SampleConfig

MOST_PROMPTS = 1000
Caption = Annotated[str, Field(min_length=1, max_length=10_000)]


class ValidationConfig(SampleConfig):
    """Videos of fixed captions, sampled from the weights of a run while it trains; they change nothing in it."""

    prompts: tuple[Caption, ...] | Path = Field(
        description=f"captions, or a text file with one on each line; at most {MOST_PROMPTS}"
    )
    every_steps: int = Field(1000, ge=1, description="optimizer steps between validations")
    weights: Literal["ema", "model"] | None = Field(
        None, description="ema: the average of the weights, model: the last ones; null: ema if the run has it"
    )
    fps: int = Field(24, ge=1, description="frames per second of the files")

    @model_validator(mode="after")
    def _is_exact_and_of_text(self) -> "ValidationConfig":
        if self.cache is not None:
            raise ValueError("cache is approximate, and here no gate would look at it: leave it out")
        if self.image_guidance is not None:
            raise ValueError(
                "image_guidance needs a picture, and validation samples from captions: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _fits_a_file(self) -> "ValidationConfig":
        if self.height % 2 or self.width % 2:
            raise ValueError(f"{self.height}x{self.width}: an MP4 in 4:2:0 needs an even height and width")
        return self

    def captions(self) -> tuple[str, ...]:
        """Return the captions; blank lines of a file do not count.

        Raises:
            UsageError: the file cannot be read, or their number is 0 or too large.
        """
        found = self.prompts
        if isinstance(found, Path):
            try:
                lines = found.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"validation.prompts={str(found)!r} cannot be read: {error}") from error
            found = tuple(line.strip() for line in lines if line.strip())
        if not 0 < len(found) <= MOST_PROMPTS:
            raise UsageError(
                f"validation.prompts are {len(found)} captions; 1 to {MOST_PROMPTS} are possible"
            )
        return found
