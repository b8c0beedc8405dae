"""A folder of raw footage: the videos, their captions, the truth about their cuts, and a record of it all."""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from pipelines.footage.edit import Transition
from pipelines.footage.reels import REELS, Reel
from pipelines.footage.write import write_video

_log = logging.getLogger(__name__)

RECORD = "footage.json"
KEPT_SHARE = 0.6
BROKEN = "cut off at 60 % of its bytes: the index at its end is missing"
README = """Raw footage for `reelweave demo`, rendered by pipelines/footage. Nothing here was filmed.

NAME.mp4, NAME.webm    what to curate: H.264 and VP9, upright and portrait, one of variable frame rate,
                       one turned by its display matrix, one with sound, one cut off in the middle
NAME.txt, NAME.json    the caption of a video; one video carries it inside, and one has none
NAME.cuts.json         where the cuts, dissolves and fades of a video are, frame by frame
footage.json           checksums; while they hold, the footage is used again instead of rendered again

This file is no video, as in every folder that people fill by hand.
"""


@dataclass(frozen=True)
class MadeVideo:
    """One video file and the truth about it.

    Shots are the spans (first, last) of their untouched frames, counted from 0 as shown. A broken video
    has none, and `broken` says what is wrong with it.
    """

    path: Path
    caption: str
    shots: tuple[tuple[int, int], ...]
    transitions: tuple[Transition, ...]
    broken: str | None = None


def make_footage(folder: Path, seed: int = 0, reels: Sequence[Reel] = REELS) -> list[MadeVideo]:
    """Fill a folder with raw footage, or find it there already.

    Every file appears whole under its name or not at all, and the record of checksums last: a run that
    was killed is made good by the next one.

    Args:
        folder: Made when missing; other files in it are left alone.
        seed: Equal seeds give equal bytes on one machine.
        reels: What to make.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recipe = _recipe(seed, reels)
    if not _is_made(folder, recipe):
        made = {"README.txt": _publish(folder / "README.txt", README.encode())}
        for reel in reels:
            started = time.perf_counter()
            made |= _make(folder, reel, seed)
            _log.info("rendered %s in %.1f s", folder / reel.name, time.perf_counter() - started)
        _publish(folder / RECORD, json.dumps({"recipe": recipe, "sha256": made}, indent=1).encode())
    return [_describe(folder, reel) for reel in reels]


def _describe(folder: Path, reel: Reel) -> MadeVideo:
    if reel.cut_off:
        return MadeVideo(folder / reel.name, reel.caption, (), (), BROKEN)
    timeline = reel.timeline()
    return MadeVideo(folder / reel.name, reel.caption, timeline.shots, timeline.transitions)


def _make(folder: Path, reel: Reel, seed: int) -> dict[str, str]:
    """Write one video and what lies beside it; return the checksums by name."""
    stem = Path(reel.name).stem
    beside = {}
    if reel.caption_in == "txt":
        beside[f"{stem}.txt"] = reel.caption + "\n"
    if reel.caption_in == "json":
        beside[f"{stem}.json"] = json.dumps({"caption": reel.caption})
    if not reel.cut_off:
        beside[f"{stem}.cuts.json"] = json.dumps(cut_list(reel), indent=1)
    made = {name: _publish(folder / name, text.encode()) for name, text in beside.items()}
    # A name no reader takes for a video, until the video is whole.
    partial = folder / f".{reel.name}.partial"
    write_video(reel, seed, partial)
    if reel.cut_off:
        partial.write_bytes(partial.read_bytes()[: int(KEPT_SHARE * partial.stat().st_size)])
    partial.replace(folder / reel.name)
    return made | {reel.name: _sha256(folder / reel.name)}


def cut_list(reel: Reel) -> dict[str, Any]:
    """The truth about the cuts of a reel, as `reelweave bench shots` reads it."""
    timeline = reel.timeline()
    transitions = []
    for each in timeline.transitions:
        join = each.join
        details: dict[str, Any] = {}
        if join.type == "dissolve":
            details = {"mixed_frames": join.frames}
        elif join.type == "fade_through_black":
            first_black = each.start_frame + join.frames + 1
            details = {
                "fade_out_frames": join.frames,
                "fade_in_frames": join.frames,
                "black_frames": [first_black, first_black + join.black - 1],
            }
        place = {"type": join.type, "start_frame": each.start_frame, "end_frame": each.end_frame}
        allowed = 2 if join.type == "fade_through_black" else 1
        transitions.append(place | details | {"required": True, "allowed_boundaries": allowed})
    return {
        "file": reel.name,
        "how": "rendered shot by shot, so every number is exact",
        "fps": f"{reel.fps}/1",
        "frames": timeline.frames,
        "width": reel.height if reel.turned else reel.width,
        "height": reel.width if reel.turned else reel.height,
        "conventions": {
            "frames": "0-based, in presentation (decoded) order",
            "start_frame": "last untouched frame of the outgoing shot",
            "end_frame": "first untouched frame of the incoming shot",
            "allowed_boundaries": "how many reported boundaries inside start_frame..end_frame count as right",
            "required": "false: reporting it and leaving it out are both acceptable",
            "not_cuts": "things that look like a cut but lie inside one shot",
            "width, height": "as stored, before rotation",
        },
        "transitions": transitions,
        "not_cuts": [],
    }


def _publish(path: Path, content: bytes) -> str:
    """Write a file whole or not at all; return its checksum."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
    return hashlib.sha256(content).hexdigest()


def _is_made(folder: Path, recipe: str) -> bool:
    """Whether the folder holds, whole, what the recipe makes."""
    try:
        record = json.loads((folder / RECORD).read_text())
        return record["recipe"] == recipe and all(
            _sha256(folder / name) == sha256 for name, sha256 in record["sha256"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _recipe(seed: int, reels: Sequence[Reel]) -> str:
    """A fingerprint of what is asked for and of the code and libraries that make it."""
    asked = [(reel.name, reel.caption, reel.timeline()) for reel in reels]
    digest = hashlib.sha256(repr((seed, asked, av.__version__, np.__version__)).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
