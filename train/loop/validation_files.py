"""Files of validation: one folder for each validated step, published whole, and a sheet of prompts by steps."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import NoRoomError, RunError, lacks_room
from reelweave.train.loop.logs.pictures import GAP_PX, filmstrip, png, sheet
from reelweave.train.loop.validation_config import ValidationConfig, ValidationPrompt

FOLDER, SHEET, MANIFEST = "validation", "sheet.png", "validation.json"
FRAMES = 6
"""Maximum number of frames in a video's strip."""
COLUMNS = 12
"""Maximum number of steps in the sheet, the newest ones."""


class ValidationFiles:
    """Folder ``validation`` of a run.

    Args:
        out: folder of the run, on a file system that all ranks see.
        config: validation.
        rows: its captions and pictures.
        weights: weights that made the videos.
    """

    def __init__(
        self, out: Path, config: ValidationConfig, rows: tuple[ValidationPrompt, ...], weights: str
    ) -> None:
        self._root, self._config, self._rows, self._weights = out / FOLDER, config, rows, weights

    def folder(self, step: int) -> Path:
        """Return the published folder of a step."""
        return self._root / f"step-{step:06d}"

    def begin(self, step: int) -> None:
        """Make an empty hidden folder for a step; on the one rank that publishes."""
        try:
            shutil.rmtree(self._aside(step), ignore_errors=True)
            self._aside(step).mkdir(parents=True)
        except OSError as error:
            raise _unwritable(self._root, error) from error

    def add(self, step: int, index: int, video_CTHW: NDArray[np.uint8], mp4: bytes) -> None:
        """Write a video and a strip of its frames."""
        self._write(step, f"{index:03d}.mp4", mp4)
        self._write(step, f"{index:03d}.png", png(filmstrip(video_CTHW, FRAMES)))

    def write_failure(self, step: int, index: int, why: str) -> None:
        """Write why there is no video."""
        self._write(step, f"{index:03d}.txt", why.encode())

    def publish(self, step: int) -> tuple[dict[str, Any], dict[str, NDArray[np.uint8]]]:
        """Publish the folder of a step and the sheet; return a record of both, and the strips by number of prompt."""
        aside, folder = self._aside(step), self.folder(step)
        indices = range(len(self._rows))
        failed = {n: path.read_text() for n in indices if (path := aside / f"{n:03d}.txt").exists()}
        # Complete beside its place first, then renamed: a reader sees all of a step or nothing.
        manifest = {
            "step": step,
            "weights": self._weights,
            "sample": self._config.model_dump(mode="json", exclude={"prompts"}),
            "videos": [
                {
                    "prompt": self._rows[n].prompt,
                    "image": None if self._rows[n].image is None else str(self._rows[n].image),
                    "file": None if n in failed else f"{n:03d}.mp4",
                    "failed": failed.get(n),
                }
                for n in indices
            ],
        }
        self._write(step, MANIFEST, json.dumps(manifest, indent=1).encode())
        try:
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
            pictures = {n: Image.open(folder / f"{n:03d}.png") for n in indices if n not in failed}
            self._write_sheet(step)
        except OSError as error:
            raise _unwritable(folder, error) from error
        # What the log says of it.
        message = f"{len(indices) - len(failed)} validation videos"
        if failed:
            message += f" ({len(failed)} failed: {next(iter(failed.values()))})"
        record = {"videos": len(pictures), "failed": len(failed), "weights": self._weights, "said": message}
        return record, {f"{n:03d}": np.asarray(picture.convert("RGB")) for n, picture in pictures.items()}

    def _write_sheet(self, step: int) -> None:
        """Write the middle frames of all prompts, a row each, at the steps up to this one."""
        steps = sorted(
            int(match[1]) for path in self._root.iterdir() if (match := _STEP.fullmatch(path.name))
        )
        columns = [each for each in steps if each <= step]
        # What a run began with stays beside what it makes.
        kept = columns[:1] if columns[0] == 0 and len(columns) > COLUMNS else []
        columns = [*kept, *columns[-(COLUMNS - len(kept)) :]]
        rows = [[self._middle(each, n) for each in columns] for n in range(len(self._rows))]
        with whole_file(self._root / SHEET) as aside:
            aside.write_bytes(png(sheet(rows)))

    def _middle(self, step: int, index: int) -> Image.Image | None:
        path, width = self.folder(step) / f"{index:03d}.png", self._config.width
        if not path.exists():
            return None
        with Image.open(path) as strip:
            frames = (strip.width + GAP_PX) // (width + GAP_PX)
            left_px = frames // 2 * (width + GAP_PX)
            return strip.convert("RGB").crop((left_px, 0, left_px + width, strip.height))

    def _aside(self, step: int) -> Path:
        return self._root / f".step-{step:06d}"

    def _write(self, step: int, name: str, content: bytes) -> None:
        try:
            (self._aside(step) / name).write_bytes(content)
        except OSError as error:
            raise _unwritable(self._aside(step) / name, error) from error


def _unwritable(path: Path, error: OSError) -> RunError:
    kind = NoRoomError if lacks_room(error) else RunError
    return kind(f"validation cannot write {path}: {error}")


_STEP = re.compile(r"step-(\d{6,})")
