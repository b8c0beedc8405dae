"""Configuration of videos sampled during training; importing it loads no torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from reelweave.loader.base.named_file import lines_of, read_named_text
from reelweave.loader.base.strict_json import parse
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.train.sampling.config import SampleConfig

MOST_PROMPTS = 1000
_MOST_PROMPT_BYTES = 64 << 20
CaptionText = Annotated[str, Field(min_length=1, max_length=10_000)]


class ValidationPrompt(Settings):
    """One video of validation, as a line of a JSONL file."""

    prompt: CaptionText = Field(description="caption of the video")
    image: Path | None = Field(
        None, description="picture or video that the video begins with, relative to the file of prompts"
    )
    image_frames: int = Field(1, ge=1, description="number of frames to take from the beginning of the image")


class ValidationConfig(SampleConfig):
    """Videos of fixed captions, sampled from the weights of a run while it trains; they change nothing in it."""

    prompts: tuple[CaptionText | ValidationPrompt, ...] | Path = Field(
        description="captions, or a text file with one on each line, or objects with prompt and image, or a .jsonl file"
        f" of them; at most {MOST_PROMPTS}"
    )
    every_steps: int = Field(1000, ge=1, description="optimizer steps between validations")
    before_first_step: bool = Field(
        False,
        description="sample before the first step, too: videos of the model as it is published, or as the run begins",
    )
    weights: Literal["ema", "model"] | None = Field(
        None, description="ema: the average of the weights, model: the last ones; null: ema if the run has it"
    )
    lora_2: Path | None = Field(
        None, description="exported adapters of the other one of Wan 2.2's two experts; null: as published"
    )
    checkpoint_2: str | None = Field(
        None, description="run or checkpoint of that expert, instead of adapters"
    )
    fps: int | None = Field(
        None,
        ge=1,
        description="frames per second of the files; null: those that the model was trained at, otherwise 24",
    )

    @model_validator(mode="after")
    def _is_exact_and_of_text(self) -> "ValidationConfig":
        if self.cache is not None:
            raise ValueError("cache is approximate, and here no gate would look at it: leave it out")
        if self.lora_2 is not None and self.checkpoint_2 is not None:
            raise ValueError("lora_2 and checkpoint_2 are both of the other expert: give one of them")
        if not isinstance(self.prompts, Path):
            self._check_images(self.rows())
        return self

    @model_validator(mode="after")
    def _fits_a_file(self) -> "ValidationConfig":
        if self.height % 2 or self.width % 2:
            raise ValueError(f"{self.height}x{self.width}: an MP4 in 4:2:0 needs an even height and width")
        return self

    def rows(self) -> tuple[ValidationPrompt, ...]:
        """Return the videos to make; blank lines of a file do not count.

        Raises:
            UsageError: the file cannot be read, their number is 0 or too large, or image guidance lacks a picture.
        """
        if isinstance(self.prompts, Path):
            rows = tuple(_rows_of(self.prompts))
        else:
            rows = tuple(
                ValidationPrompt(prompt=row) if isinstance(row, str) else row for row in self.prompts
            )
        if not 0 < len(rows) <= MOST_PROMPTS:
            raise UsageError(f"validation.prompts are {len(rows)} captions; 1 to {MOST_PROMPTS} are possible")
        if isinstance(self.prompts, Path):
            try:
                self._check_images(rows)
            except ValueError as error:
                raise UsageError(f"validation.prompts={str(self.prompts)!r}: {error}") from error
        return rows

    def _check_images(self, rows: tuple[ValidationPrompt, ...]) -> None:
        if self.image_guidance is not None and not all(row.image for row in rows):
            raise ValueError(
                "image_guidance needs a picture for every caption: give each an image, or leave it out"
            )


def _rows_of(path: Path) -> Iterator[ValidationPrompt]:
    named = f"validation.prompts={str(path)!r}"
    for line_number, line in enumerate(lines_of(read_named_text(path, _MOST_PROMPT_BYTES, named)), 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            yield ValidationPrompt(prompt=line.strip())
            continue
        try:
            row = ValidationPrompt.model_validate(parse(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise UsageError(f"{named}, line {line_number}: {where}: {first['msg']}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{named}, line {line_number}: is no JSON: {error}") from error
        yield row.model_copy(update={"image": row.image and path.parent / row.image})
