"""FFmpeg's own program: clips as other people cut and write them, and what a plain player shows of a clip."""

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from tests.media import numbered_frame, read_number

PROGRAM = imageio_ffmpeg.get_ffmpeg_exe()
SIZE = (160, 128)
RATE = 25


def ffmpeg(words: list[str], data: bytes = b"", *, may_fail: bool = False) -> bool:
    """Run the program on data, and return whether it succeeded."""
    program = [PROGRAM, "-nostdin" if not data else "-y", "-v", "error", *words]
    done = subprocess.run(program, input=data, capture_output=True, check=False)
    assert may_fail or not done.returncode, done.stderr.decode()
    return not done.returncode


def encode_numbered(path: Path, frames: int, encoder: str, filters: str = "null") -> Path:
    """Numbered frames, encoded with the program's options; the path's suffix decides the container."""
    width, height = SIZE
    raw = b"".join(numbered_frame(number, width, height).tobytes() for number in range(frames))
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {RATE} -i - -vf {filters} -fps_mode vfr"
    ffmpeg([*source.split(), *encoder.split(), "-y", str(path)], raw)
    return path


def cut_by_copy(
    source: Path, target: Path, before: str, after: str = "", *, may_fail: bool = False
) -> Path | None:
    """A stream copy, as most tools cut, with options before and after the input; None where the program fails."""
    words = [*before.split(), "-i", str(source), *after.split(), "-c", "copy", "-y", str(target)]
    return target if ffmpeg(words, may_fail=may_fail) else None


def numbers_shown(path: Path) -> list[int]:
    """The number in each frame that the program shows, in order."""
    width, height = SIZE
    words = f"-map 0:v:0 -fps_mode passthrough -f rawvideo -pix_fmt rgb24 -s {width}x{height} -"
    program = [PROGRAM, "-nostdin", "-v", "quiet", "-i", str(path), *words.split()]
    shown = subprocess.run(
        program, capture_output=True, check=False
    ).stdout  # it goes on behind damage, and fails at the end
    return [read_number(picture) for picture in np.frombuffer(shown, np.uint8).reshape(-1, height, width, 3)]
