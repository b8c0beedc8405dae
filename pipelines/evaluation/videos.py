"""Videos to evaluate: files of a folder, with the captions that a manifest names."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.named_file import lines_of
from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.pipelines.sampling.outputs import MANIFEST
from reelweave.pipelines.terminal.files import read_text
from reelweave.train.loop.logs.record import METRICS

_MOST_BYTES = 8 << 30
"""Largest decoded video."""


@dataclass(frozen=True)
class VideoSet:
    """Videos of one checkpoint.

    Attributes:
        folder: their folder.
        paths: the files, by name.
        records: record of each file in the folder's manifest, by name; empty without a manifest.
        prompt_set: name of captions and settings that a run samples again and again; None: another folder.
    """

    folder: Path
    paths: tuple[Path, ...]
    records: dict[str, dict[str, Any]]
    prompt_set: str | None = None

    @property
    def step(self) -> int | None:
        """Optimizer step of the checkpoint that made the videos, if a manifest names it."""
        steps = {record.get("step") for record in self.records.values()}
        return steps.pop() if len(steps) == 1 else None

    def caption(self, path: Path) -> str | None:
        """Return the caption of a video, if a manifest names it."""
        return self.records.get(path.name, {}).get("prompt")


def video_set(folder: Path) -> VideoSet:
    """Return the videos of a folder, of `reelweave sample --prompts` or any other.

    Raises:
        UsageError: there is none.
        RunError: the manifest is damaged.
    """
    paths = tuple(sorted(folder.glob("*.mp4"))) if folder.is_dir() else ()
    if not paths and (folder / METRICS).exists():
        raise UsageError(f"the run {folder} has sampled no validation videos: set its section validation")
    if not paths:
        raise UsageError(
            f"{folder} is no folder with .mp4 files; give one that `reelweave sample --prompts` wrote"
        )
    manifest = folder / MANIFEST
    if not manifest.exists():
        return VideoSet(folder, paths, {})
    try:
        records = [json.loads(line) for line in lines_of(read_text(manifest))]
        return VideoSet(folder, paths, {str(record["file"]): record for record in records})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{manifest} is damaged: {first_line(error)}") from error


def read_video(path: Path, size: tuple[int, int] | None = None) -> tuple[NDArray[np.uint8], float]:
    """Decode all frames as RGB, uint8 [3, frames, height, width], and return them with the frames per second.

    Args:
        path: the file.
        size: height and width to resize to; None: the video's own, upright and with square pixels.

    Raises:
        RunError: the file cannot be decoded, or is too large.
    """
    import av

    from reelweave.loader.dataset.samples.frames.shown_frames import count_shown
    from reelweave.loader.dataset.samples.frames.upright import shown_size
    from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
    from reelweave.loader.read.decode import decode

    try:
        # Number and size of frames, before any memory is taken for them.
        data = path.read_bytes()
        frames = count_shown(data)
        with open_clip(data) as (container, stream):
            fps = float(stream.average_rate or 24)
            height, width = size or shown_size(
                next(decode_stream(container, stream)), stream.sample_aspect_ratio, data
            )
    except (OSError, IndexError, StopIteration, av.FFmpegError) as error:
        raise RunError(f"{path} is no video: {first_line(error)}") from error
    if not 0 < 3 * frames * height * width <= _MOST_BYTES:
        raise RunError(f"{path} has {frames} frames of {height}x{width}, which is too much to evaluate")
    # All frames at once, which the metrics go over several times.
    video_CTHW = np.empty((3, frames, height, width), np.uint8)
    try:
        decode(data, np.arange(frames), video_CTHW, upright=False)
    except RunError as error:
        raise RunError(f"{path}: {error}") from error
    return video_CTHW, fps
