"""The same frames of a clip by several readers: in order, and after a seek to each frame."""

import contextlib
import io
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np

from tests.player import PROGRAM

Reader = Callable[[Path, int], tuple[list[np.ndarray], list[np.ndarray]]]
"""Function from a file and a stride to its frames in order, and to every so many-th frame after a seek to it."""


@contextlib.contextmanager
def stored(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        path.write_bytes(data)
        yield path


def pyav(path: Path, stride: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        stamps = [frame.pts for frame in frames]
        ordered = [frame.to_ndarray() for frame in frames]
        del frames
        sought = []
        for pts in stamps[::stride]:
            container.seek(pts, stream=stream)
            sought.append(next(frame for frame in container.decode(stream) if frame.pts >= pts).to_ndarray())
    return ordered, sought


def ffmpeg(path: Path, stride: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """FFmpeg's program; it seeks by time."""
    with av.open(io.BytesIO(path.read_bytes())) as container:
        stream = container.streams.video[0]
        width, height, rate = stream.codec_context.width, stream.codec_context.height, stream.average_rate
        pixel_format, kind = stream.codec_context.pix_fmt, np.uint8
    if pixel_format == "yuv420p10le":
        kind = np.uint16
    else:
        pixel_format = "yuv420p"

    def run(before: list[str], after: list[str]) -> np.ndarray:
        words = [*before, "-i", str(path), "-map", "0:v:0", *after, "-fps_mode", "passthrough"]
        command = [
            PROGRAM,
            "-nostdin",
            "-v",
            "error",
            *words,
            "-f",
            "rawvideo",
            "-pix_fmt",
            pixel_format,
            "-",
        ]
        done = subprocess.run(command, capture_output=True, check=True)
        assert not done.stderr, done.stderr.decode()
        return np.frombuffer(done.stdout, kind).reshape(-1, height * 3 // 2, width)

    ordered = list(run([], []))
    numbers = range(0, len(ordered), stride)
    sought = [run(["-ss", f"{float(at / rate):.6f}"], ["-frames:v", "1"])[0] for at in numbers]
    return ordered, sought


def opencv(path: Path, stride: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    import cv2

    video = cv2.VideoCapture(str(path))
    ordered = []
    while (read := video.read())[0]:
        ordered.append(read[1][..., ::-1])
    sought = []
    for at in range(0, len(ordered), stride):
        video.set(cv2.CAP_PROP_POS_FRAMES, at)
        sought.append(video.read()[1][..., ::-1])
    return ordered, sought


def decord(path: Path, stride: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    import decord as library

    video = library.VideoReader(str(path), num_threads=1)
    ordered = [video[at].asnumpy() for at in range(len(video))]
    sought = []
    for at in reversed(range(0, len(ordered), stride)):
        video.seek_accurate(at)
        sought.insert(0, video.next().asnumpy())
    return ordered, sought


READERS: dict[str, Reader] = {"PyAV": pyav, "FFmpeg": ffmpeg, "OpenCV": opencv, "decord": decord}


def faults(data: bytes, name: str, stride: int = 1) -> list[str]:
    """What a reader shows otherwise than PyAV does in order, in words."""
    with stored(data) as path:
        planes, _ = pyav(path, 10**9)
        ordered, sought = READERS[name](path, stride)
        with av.open(str(path)) as container:
            colours = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    wrong = [] if len(ordered) == len(planes) else [f"{len(ordered)} frames instead of {len(planes)}"]
    for at, frame in enumerate(ordered[: len(planes)]):
        if name in ("PyAV", "FFmpeg"):
            if not np.array_equal(frame, planes[at]):
                wrong.append(f"frame {at} differs")
        elif not _nearest(frame, colours, at):
            wrong.append(f"frame {at} shows another one")
    wrong += [
        f"frame {at} after a seek"
        for at, frame in zip(range(0, len(ordered), stride), sought, strict=True)
        if not np.array_equal(frame, ordered[at])
    ]
    return wrong


def _nearest(frame: np.ndarray, colours: list[np.ndarray], at: int) -> bool:
    """Whether a picture of another converter is frame ``at``, and no neighbour, up to its rounding."""
    around = range(max(0, at - 2), min(len(colours), at + 3))
    distances = {one: float(np.abs(frame.astype(np.int16) - colours[one]).mean()) for one in around}
    return distances[at] <= min(distances.values()) + 0.5
