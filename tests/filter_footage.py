"""Footage for the filters, rendered small, and the sample of a video as the cut pass collects it."""

import hashlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from reelweave.curate.filters import ClipSample, MotionMeter, ScoreConfig, loudness_dbfs
from reelweave.curate.frames.picture import Finisher, geometry
from reelweave.curate.frames.source import open_video
from reelweave.curate.shots.scale import Scaler
from tests.kept_films import Films

WIDTH, HEIGHT, RATE = 512, 288, 25
FILMS = Films(__file__)
Picture = NDArray[np.uint8]

_GREY = np.array([0.299, 0.587, 0.114], np.float32)


def texture(width: int = WIDTH, height: int = HEIGHT, seed: int = 0, softness: float = 0.7) -> Picture:
    """A still picture with structure of all sizes, uint8 [height, width, 3], like foliage or a crowd.

    ``softness``: the exponent by which coarse structure is the stronger.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    for cell in (128, 64, 32, 16, 8, 4, 2, 1):
        rows, columns = height // cell + 2, width // cell + 2
        small = VideoFrame.from_ndarray(rng.integers(0, 256, (rows, columns, 3), np.uint8), "rgb24")
        large = small.reformat(columns * cell, rows * cell, interpolation="BICUBIC").to_ndarray()
        total += (large[:height, :width].astype(np.float32) - 128) * cell**softness
    total *= 45 / total.std()
    return np.clip(total + 120, 8, 247).astype(np.uint8)


def pan(frames: int, step: int = 3, seed: int = 0, softness: float = 0.7) -> Iterator[Picture]:
    """The camera moves to the right over a still scene, ``step`` pixels per frame."""
    wide = texture(WIDTH + step * frames, HEIGHT, seed, softness)
    for number in range(frames):
        yield wide[:, step * number : step * number + WIDTH]


def still(frames: int, seed: int = 0) -> Iterator[Picture]:
    """A photograph."""
    return itertools.repeat(texture(seed=seed), frames)


def over(
    pictures: Iterable[Picture], text: str, place: tuple[float, float], **style: object
) -> Iterator[Picture]:
    """The pictures with text burnt in; ``place`` is its middle, as shares of width and height."""
    options = {"size": 0.065, "fill": (255, 255, 255, 255), "stroke_width": 1, **style}
    font = ImageFont.load_default(round(HEIGHT * float(options.pop("size"))))  # type: ignore[arg-type]
    layer = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    middle = (place[0] * WIDTH, place[1] * HEIGHT)
    ImageDraw.Draw(layer).text(middle, text, font=font, anchor="mm", stroke_fill=(0, 0, 0, 255), **options)
    for picture in pictures:
        image = Image.fromarray(picture)
        image.paste(layer, (0, 0), layer)
        yield np.asarray(image)


def encode(
    path: Path,
    pictures: Iterable[Picture],
    *,
    rate: int = RATE,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
) -> Path:
    """The pictures as a video; of equal ones it is encoded once (`tests/kept_films.py`)."""
    shown = list(pictures)
    digest = hashlib.sha256()
    for picture in shown:
        digest.update(repr(picture.shape).encode() + np.ascontiguousarray(picture).data)
    how = (path.suffix, digest.hexdigest(), rate, codec, options)
    path.write_bytes(FILMS.kept(how, lambda: _encoded(path.suffix, shown, rate, codec, options)))
    return path


def _encoded(
    suffix: str, pictures: Iterable[Picture], rate: int, codec: str, options: dict[str, str] | None
) -> bytes:
    with (
        tempfile.NamedTemporaryFile(suffix=suffix) as file,
        av.open(file.name, "w") as container,
    ):
        stream = container.add_stream(codec, rate=rate)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"crf": "20", "preset": "veryfast"} if options is None else options
        for number, picture in enumerate(pictures):
            if number == 0:
                stream.height, stream.width = picture.shape[:2]
            frame = VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        container.close()
        return Path(file.name).read_bytes()


def sample_of(
    path: Path,
    first: int = 0,
    last: int | None = None,
    config: ScoreConfig | None = None,
    *,
    motion_vectors: bool = True,
) -> ClipSample:
    """The sample of frames ``[first, last)`` of a video."""
    config = config or ScoreConfig()
    small, scaler = Scaler((64, 36)), VideoReformatter()
    tiny: list[NDArray[np.float32]] = []
    pictures: list[Picture] = []
    times_s: list[float] = []
    with path.open("rb") as file, open_video(file, motion_vectors=motion_vectors) as (container, stream):
        meter = MotionMeter(stream.codec_context.name)
        rate = float(stream.average_rate or RATE)
        frames = itertools.islice(container.decode(stream), first, last)
        head = next(frames)
        size = geometry(head, stream.codec_context.sample_aspect_ratio)
        scale = min(1.0, config.long_side_px / max(size.width, size.height))
        finish = Finisher(size)
        for number, frame in enumerate(itertools.chain([head], frames)):
            tiny.append(small(frame).astype(np.float32) @ _GREY)
            meter.push(frame, number / rate)
            if number / rate + 1e-9 < len(pictures) / config.fps:
                continue
            shown = scaler.reformat(
                finish.finish(frame),
                round(size.width * scale),
                round(size.height * scale),
                "rgb24",
                interpolation="AREA",
            )
            pictures.append(shown.to_ndarray())
            times_s.append(number / rate)
    motion = meter.take()
    steps = [0.0] + [float(np.abs(after - before).mean()) for before, after in itertools.pairwise(tiny)]
    return ClipSample(
        pictures=np.stack(pictures),
        times_s=np.array(times_s),
        luma=np.array([picture.mean() for picture in tiny], np.float32),
        steps=np.array(steps, np.float32),
        motion=motion.motion,
        width=size.width,
        height=size.height,
        frames=len(tiny),
        fps=rate,
        duration_s=len(tiny) / rate,
        audio_dbfs=loudness_dbfs(path.read_bytes()),
        motion_local=motion.motion_local,
        vectors_missing=motion.vectors_missing,
    )
