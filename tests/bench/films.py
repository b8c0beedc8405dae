"""Films of every container and codec that FFmpeg renders, curated and held against what was rendered.

python -m tests.bench.films [--only WORDS] [--keep FOLDER] > table.md

Needs the program ffmpeg. Every frame says its own number, so that length, order and orientation are read off the
clips; colours are compared with the picture that was rendered.
"""

import argparse
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from tests.bench.film_cases import CASES, Case
from tests.cutting import curated
from tests.media import numbered_frame, read_number, with_display_matrix

_CELL = 16
_MATRICES = {
    "rotate 90": (0, 1, -1, 0),
    "rotate 180": (-1, 0, 0, -1),
    "rotate 270": (0, -1, 1, 0),
    "mirror": (-1, 0, 0, 1),
}
_SRT = "1\n00:00:00,000 --> 00:00:01,000\nHello.\n"
_CHAPTERS = ";FFMETADATA1\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=1000\ntitle=One\n"


@dataclass(frozen=True)
class Result:
    """What came of one film; ``faults`` is empty where all is as it must be."""

    case: Case
    codec: str
    states: str
    frames: int
    seconds: float
    colour: float
    cpu_s: float
    faults: tuple[str, ...]


def render(case: Case, folder: Path) -> Path:
    """Renders a film.

    Raises:
        RuntimeError: FFmpeg cannot, with its words.
    """
    path = folder / f"film.{case.suffix}"
    _encode(case, path)
    if case.after == "cut off":
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    elif case.after == "twice":
        path.write_bytes(path.read_bytes() * 2)
    elif case.after == "then larger":
        other = folder / f"other.{case.suffix}"
        _encode(Case(case.name, case.suffix, case.options, size=(320, 240)), other)
        path.write_bytes(path.read_bytes() + other.read_bytes())
    elif case.after == "trim":
        _ffmpeg(["-ss", "0.4", "-i", str(path), "-c", "copy", str(path.with_stem("trimmed"))])
        return path.with_stem("trimmed")
    elif case.after in _MATRICES:
        path.write_bytes(with_display_matrix(path.read_bytes(), *_MATRICES[case.after]))
    return path


def _encode(case: Case, path: Path) -> None:
    folder = path.parent
    (folder / "a.srt").write_text(_SRT)
    (folder / "chapters.txt").write_text(_CHAPTERS)
    raw = b"".join(_picture(case, number).tobytes() for number in range(case.frames))
    width, height = _rendered_size(case)
    inputs = [
        word.replace("$SRT", str(folder / "a.srt")).replace("$CHAPTERS", str(folder / "chapters.txt"))
        for text in case.inputs
        for word in shlex.split(text)
    ]
    source = [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{width}x{height}",
        "-r",
        str(case.rate),
        "-i",
        "-",
    ]
    _ffmpeg([*source, *inputs, *shlex.split(case.options), str(path)], raw)


def _rendered_size(case: Case) -> tuple[int, int]:
    turned = case.after in ("rotate 90", "rotate 270")
    return case.size[::-1] if turned and case.clip_size is None else case.size


def _picture(case: Case, number: int) -> NDArray[np.uint8]:
    """The frame as it is stored: turned or mirrored where the container will turn it back."""
    width, height = case.clip_size if case.after.startswith("rotate") and case.clip_size else case.size
    picture = numbered_frame(number, width, height)
    if case.after.startswith("rotate"):
        picture = np.rot90(picture, int(case.after.split()[1]) // 90)
    return np.ascontiguousarray(picture[:, ::-1] if case.after == "mirror" else picture)


def _ffmpeg(words: list[str], data: bytes = b"") -> None:
    done = subprocess.run(
        ["ffmpeg", "-hide_banner", "-loglevel", "error", "-y", *words],
        input=data,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip().splitlines()[-1])


def judge(case: Case, path: Path, out: Path) -> Result:
    """Curates a film and compares what comes out with what was rendered."""
    began = time.process_time()
    found = curated(path, out, spans={"min_clip_s": 0.2}, stitch={"enabled": True})
    cpu_s = time.process_time() - began
    pictures = [picture for _, clip in found for picture in _pictures(clip)]
    numbers = [read_number(picture) for picture in pictures]
    kept = [record for record, _ in found if record.state == "kept"]
    seconds = sum(record.duration_s for record in kept)
    colour = _difference(case, pictures, numbers) if case.colour is not None and pictures else 0.0
    states = ", ".join(
        f"{record.state}: {record.reason}" if record.reason else record.state for record, _ in found
    )
    faults = tuple(_faults(case, kept, numbers, seconds, colour, found[0][0].reason))
    return Result(case, _codec(path), states, len(numbers), seconds, colour, cpu_s, faults)


def _faults(case, kept, numbers, seconds, colour, reason):  # type: ignore[no-untyped-def]
    if not case.kept:
        if kept or not reason:
            yield "is not refused in words"
        return
    if not kept:
        yield f"lost: {reason}"
        return
    want = list(range(case.frames)) if case.shown is None else list(case.shown)
    if case.loose:
        if any(after < before for before, after in pairwise(numbers)) and case.after not in (
            "twice",
            "then larger",
        ):
            yield "frames out of order"
    elif numbers != want:
        first = next(
            (n for n, (a, b) in enumerate(zip(numbers, want, strict=False)) if a != b),
            min(len(numbers), len(want)),
        )
        yield f"{len(numbers)} frames for {len(want)}, the first wrong one is {first}"
    rate = case.clip_rate or case.rate
    due_s = len(want) / float(rate) if case.seconds is None else case.seconds
    if case.loose and case.seconds is None:
        due_s = case.frames / float(case.rate)
    if due_s > 0 and abs(seconds - due_s) > 1.5 / float(rate):
        yield f"{seconds:.3f} s for {due_s:.3f}"
    if abs(kept[0].fps - float(rate)) > 0.01:
        yield f"{kept[0].fps:.3f} frames per second for {float(rate):.3f}"
    size = (kept[0].width, kept[0].height)
    if case.suffix != "dv" and size != (case.clip_size or case.size):
        yield f"{size[0]}x{size[1]} for {'x'.join(map(str, case.clip_size or case.size))}"
    if case.colour is not None and colour > case.colour:
        yield f"colours differ by {colour:.1f}"


def _pictures(clip: bytes) -> list[NDArray[np.uint8]]:
    if not clip:
        return []
    with av.open(io.BytesIO(clip)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def _difference(case: Case, pictures: list[NDArray[np.uint8]], numbers: list[int]) -> float:
    """Mean difference of the mean colours of cells, over some pictures, from those that were rendered."""
    differences = []
    for picture, number in list(zip(pictures, numbers, strict=True))[::10]:
        height, width = picture.shape[:2]
        size = case.clip_size if case.after.startswith("rotate") and case.clip_size else case.size
        true = numbered_frame(number, *size)
        if true.shape != picture.shape:
            frame = av.VideoFrame.from_ndarray(true, "rgb24").reformat(width, height, interpolation="AREA")
            true = frame.to_ndarray()
        rows, columns = height // _CELL * _CELL, width // _CELL * _CELL
        cells = [
            one[:rows, :columns].reshape(rows // _CELL, _CELL, columns // _CELL, _CELL, 3).mean(axis=(1, 3))
            for one in (true.astype(float), picture.astype(float))
        ]
        differences.append(np.abs(cells[0] - cells[1]).mean())
    return float(np.mean(differences))


def _codec(path: Path) -> str:
    try:
        with av.open(str(path)) as container:
            context = container.streams.video[0].codec_context
            return f"{context.name} {context.pix_fmt}"
    except (av.error.FFmpegError, IndexError):
        return "none"


def main() -> None:
    """Renders, curates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression over suffix and name")
    parser.add_argument("--keep", type=Path, help="folder for the films")
    options = parser.parse_args()
    print(
        "| container | film | codec | states | frames | seconds | colour | verdict |\n|---|---|---|---|---|---|---|---|"
    )
    right = wrong = 0
    for case in CASES:
        if not re.search(options.only, f"{case.suffix} {case.name}"):
            continue
        with tempfile.TemporaryDirectory(prefix="reelweave-films-") as scratch:
            folder = Path(scratch)
            try:
                path = render(case, folder)
            except RuntimeError as error:
                print(f"not rendered: {case.suffix} {case.name}: {error}", file=sys.stderr)
                continue
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{case.name.replace('/', '-')}.{case.suffix}").write_bytes(path.read_bytes())
            found = judge(case, path, folder / "out")
        right, wrong = right + (not found.faults), wrong + bool(found.faults)
        verdict = "; ".join(found.faults) or "right"
        print(
            f"| {case.suffix} | {case.name} | {found.codec} | {found.states} | {found.frames} | {found.seconds:.2f} |"
            f" {'' if case.colour is None else f'{found.colour:.1f}'} | {verdict} |",
            flush=True,
        )
    print(f"\n{right} right, {wrong} wrong.", flush=True)


if __name__ == "__main__":
    main()
