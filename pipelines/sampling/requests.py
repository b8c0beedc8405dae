"""Requested videos: one prompt, or a file of them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from reelweave.loader.base.named_file import lines_of
from reelweave.loader.base.strict_json import parse
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.pipelines.terminal.files import read_text
from reelweave.train.sampling.config import SEEDS, SampleConfig

_TABLES = (".csv", ".tsv", ".json", ".parquet")
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


class Request(Settings):
    """One video to make, as a line of a JSONL file; what is null is the command line's."""

    prompt: str = Field(min_length=1, description="caption of the video")
    negative_prompt: str | None = Field(None, description="caption that guidance leads away from")
    seed: int | None = Field(None, ge=0, lt=SEEDS, description="seed of the noise")
    size: str | None = Field(None, description="HEIGHTxWIDTH in pixels")
    frames: int | None = Field(None, ge=1, description="number of frames")
    image: str | None = Field(
        None, description="picture or video that the video begins with, relative to the file of prompts"
    )
    image_frames: int = Field(1, ge=1, description="number of frames to take from the beginning of the image")

    @field_validator("size")
    @classmethod
    def _is_size(cls, size: str | None) -> str | None:
        if size is not None:
            parse_size(size)
        return size

    def config(self, common: SampleConfig, index: int) -> SampleConfig:
        """Return the configuration of a video; its seed is the common one + its number unless given."""
        changes: dict[str, Any] = {"seed": (common.seed + index) % SEEDS if self.seed is None else self.seed}
        if self.size is not None:
            changes["height"], changes["width"] = parse_size(self.size)
        if self.frames is not None:
            changes["frames"] = self.frames
        if self.negative_prompt is not None:
            changes["negative_prompt"] = self.negative_prompt
        return common.model_copy(update=changes)


def parse_size(text: str) -> tuple[int, int]:
    """Return height and width.

    Raises:
        ValueError: it is no HEIGHTxWIDTH, or no size of an MP4 in 4:2:0.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is no HEIGHTxWIDTH; write it as 64x112")
    height, width = int(match[1]), int(match[2])
    if height % 2 or width % 2:
        raise ValueError(f"{text}: an MP4 in 4:2:0 needs an even height and width")
    return height, width


def read_requests(path: Path) -> list[Request]:
    """Read a file of prompts: a caption per line, or, if its name ends in .jsonl, a JSON object per line.

    Empty lines are skipped.

    Raises:
        UsageError: the file cannot be read or holds no prompt, or a line is no request.
    """
    if path.suffix.lower() in _TABLES:
        raise UsageError(
            f"--prompts {path} would be read as a caption per line; write a .txt file of captions, or .jsonl with"
            ' an object such as {"prompt": "a cat"} per line'
        )
    lines = lines_of(read_text(path, "--prompts"))
    requests = list(_requests(lines, path) if path.suffix == ".jsonl" else _captions(lines))
    requests = [
        request.model_copy(update={"image": request.image and str(path.parent / request.image)})
        for request in requests
    ]
    if not requests:
        raise UsageError(f"--prompts {path} holds no prompt")
    return requests


def _captions(lines: list[str]) -> Iterator[Request]:
    return (Request(prompt=line.strip()) for line in lines if line.strip())


def _requests(lines: list[str], path: Path) -> Iterator[Request]:
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = parse(line)
            if not isinstance(values, Mapping):
                raise UsageError(
                    f'--prompts {path}, line {line_number}: is no JSON object such as {{"prompt": "a cat"}}'
                )
            yield Request.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"--prompts {path}, line {line_number}: {where}: {first['msg']}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--prompts {path}, line {line_number}: is no JSON: {error}") from error
