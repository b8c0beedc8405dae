"""Validation videos of a run: prompts, and the files of each step."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.strict_json import parse
from reelweave.loader.errors import UsageError

FOLDER, MANIFEST = "validation", "validation.json"
MOST_PROMPTS, MOST_STEPS = 24, 12
"""Maximum size of the sheet."""

POSTER_PX = 240
_GAP_PX = 4  # between the frames of a strip (`reelweave.train.loop.logs.pictures`)
_MOST_BYTES = 16 << 20
_STEP = re.compile(r"step-(\d{6,18})")
_FILE = re.compile(r"\d{3,4}\.mp4")


@dataclass(frozen=True)
class RunSample:
    """Sampled video of one prompt at one step.

    Attributes:
        file: path of the video in the run's folder; None without one.
        failed: why there is none; "" otherwise.
    """

    file: str | None
    failed: str


@dataclass(frozen=True)
class SampleSheet:
    """Sheet of sampled videos, prompts by steps.

    Attributes:
        steps: all validated steps.
        shown: those in the sheet: all, or evenly spread ones with the first and the last.
        prompts: prompts in the sheet.
        prompts_left_out: number of further prompts.
        weights: weights that the newest videos are of: "model" or "ema".
        rows: samples by prompt and shown step.
        failed: prompts without a video over the shown steps.
        unreadable: steps whose `validation.json` cannot be read.
    """

    steps: list[int]
    shown: list[int]
    prompts: list[str]
    prompts_left_out: int
    weights: str
    rows: list[list[RunSample]]
    failed: int
    unreadable: list[int]


def read_samples(run: Path) -> SampleSheet:
    """Read which videos a run has sampled."""
    # Folders of steps, of which some are shown, evenly spread.
    folders = {
        int(match[1]): path
        for path in ((run / FOLDER).iterdir() if (run / FOLDER).is_dir() else ())
        if (match := _STEP.fullmatch(path.name)) and path.is_dir()
    }
    steps = sorted(folders)
    manifests = {step: _manifest(folders[step] / MANIFEST) for step in spread(steps, MOST_STEPS)}
    # A row for each prompt, those of the newest step first; a step that lacks a prompt leaves a gap.
    shown = [step for step, manifest in manifests.items() if manifest is not None]
    videos = {
        step: {_text(video.get("prompt")): video for video in _videos(manifests[step])} for step in shown
    }
    prompts = list(dict.fromkeys(prompt for step in reversed(shown) for prompt in videos[step]))
    rows = [
        [_sample(videos[step].get(prompt), folders[step].name) for step in shown]
        for prompt in prompts[:MOST_PROMPTS]
    ]
    newest = manifests[shown[-1]] if shown else None
    return SampleSheet(
        steps=steps,
        shown=shown,
        prompts=prompts[:MOST_PROMPTS],
        prompts_left_out=max(0, len(prompts) - MOST_PROMPTS),
        weights=_text(newest.get("weights")) if newest else "",
        rows=rows,
        failed=sum(sample.failed != "" for row in rows for sample in row),
        unreadable=[step for step, manifest in manifests.items() if manifest is None],
    )


def poster(run: Path, sample: RunSample) -> bytes | None:
    """Return the middle frame of a sample as JPEG, from the strip beside its video; None without one."""
    from PIL import Image

    if sample.file is None:
        return None
    try:
        strip = read_named((run / sample.file).with_suffix(".png"), _MOST_BYTES)
        with Image.open(io.BytesIO(strip), formats=["PNG"]) as picture:
            frame = _middle(picture.convert("RGB"))
            frame.thumbnail((POSTER_PX, POSTER_PX))
            file = io.BytesIO()
            frame.save(file, "JPEG", quality=85)
    except (UsageError, OSError, ValueError, Image.DecompressionBombError):
        return None
    return file.getvalue()


def spread(steps: Sequence[int], max_count: int) -> list[int]:
    """Return at most so many of the steps, evenly spread, with the first and the last."""
    if len(steps) <= max_count:
        return list(steps)
    return [steps[index * (len(steps) - 1) // (max_count - 1)] for index in range(max_count)]


def _middle(strip: Any) -> Any:
    """Return the middle frame of a strip whose frames stand beside each other, apart by white gaps."""
    for frames in range(6, 1, -1):
        width, rest = divmod(strip.width + _GAP_PX, frames)
        gaps = [strip.crop((n * width - _GAP_PX, 0, n * width, strip.height)) for n in range(1, frames)]
        if not rest and all(gap.getextrema() == ((255, 255),) * 3 for gap in gaps):
            x = frames // 2 * width
            return strip.crop((x, 0, x + width - _GAP_PX, strip.height))
    return strip


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = parse(read_named(path, _MOST_BYTES))
    except (UsageError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _videos(manifest: dict[str, Any] | None) -> list[dict[str, Any]]:
    videos = (manifest or {}).get("videos")
    return [video for video in videos if isinstance(video, dict)] if isinstance(videos, list) else []


def _sample(video: dict[str, Any] | None, folder: str) -> RunSample:
    if video is None:
        return RunSample(None, "")
    file, failed = video.get("file"), video.get("failed")
    named = isinstance(file, str) and _FILE.fullmatch(file)
    return RunSample(
        f"{FOLDER}/{folder}/{file}" if named else None, failed if isinstance(failed, str) else ""
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
