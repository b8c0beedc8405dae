"""Small real videos whose every frame says its own number, and reading the numbers back."""

import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import numpy as np

from tests.kept_films import Films

# With its macroblock tree x264 reads memory it never wrote and gives other bytes each time: docs/notes/encoding.md.
_QUALITY = {"libx264": {"crf": "12", "mbtree": "0"}, "mpeg4": {"qscale": "3"}}

BITS = 10
_ROWS, _COLUMNS = 2, 5

CORPUS = Path(__file__).parent.parent.parent / "shared" / "videos"
FILMS = Films(__file__)
NO_CORPUS = f"the footage folder {CORPUS} is not on this machine"


def numbered_frame(number: int, width: int, height: int, scene: int = 0) -> np.ndarray:
    """RGB picture whose lowest quarter holds ``number`` as blocks; ``scene`` sets the rest.

    The number is in Gray code: one block changes from frame to frame, which looks like motion and not like a cut.
    """
    code = number ^ number >> 1
    picture = np.empty((height, width, 3), np.uint8)
    x = np.arange(width)[None, :, None]
    y = np.arange(height)[:, None, None]
    texture = 60 * np.sin(x * (0.05 + 0.04 * scene) + number * 0.15) * np.cos(y * 0.07 * (scene + 1))
    hue, coarse = _colours(width, height, scene)
    picture[:] = np.clip(hue + texture + coarse, 0, 255)
    block_h, block_w = height // 4 // _ROWS, width // _COLUMNS
    for bit in range(BITS):
        row, column = divmod(bit, _COLUMNS)
        top, left = height - (_ROWS - row) * block_h, column * block_w
        picture[top : top + block_h, left : left + block_w] = 170 if code >> bit & 1 else 80
    return picture


@lru_cache(maxsize=64)
def _colours(width: int, height: int, scene: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a scene's own colour [3], and what places add to it [height, width, 1]."""
    rng = np.random.default_rng(scene)
    hue = rng.integers(40, 216, 3)
    patches = rng.integers(-70, 71, (4, 5))  # coarse enough to tell scenes apart at any size
    coarse = patches[np.arange(height)[:, None] * 4 // height, np.arange(width)[None, :] * 5 // width]
    return hue, coarse[..., None]


def read_number(picture: np.ndarray) -> int:
    """The number in a decoded RGB picture."""
    height, width = picture.shape[:2]
    block_h, block_w = height // 4 // _ROWS, width // _COLUMNS
    code = 0
    for bit in range(BITS):
        row, column = divmod(bit, _COLUMNS)
        top, left = height - (_ROWS - row) * block_h, column * block_w
        centre = picture[
            top + block_h // 4 : top + 3 * block_h // 4, left + block_w // 4 : left + 3 * block_w // 4
        ]
        code |= int(centre.mean() > 125) << bit
    number = 0
    while code:
        number ^= code
        code >>= 1
    return number


def write_video(
    path: Path,
    scenes: Sequence[int] = (60,),
    *,
    size: tuple[int, int] = (160, 128),
    rate: Fraction | int = 25,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    times_s: Iterable[float] | None = None,
    start_s: float = 0.0,
    options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    audio: bool = False,
    first_scene: int = 0,
) -> Path:
    """A video of numbered frames; of equal arguments it is encoded once (`tests/kept_films.py`).

    Args:
        path: its suffix decides the container.
        scenes: frames per scene; scenes differ in colour and texture.
        times_s: when each frame is shown, for a variable frame rate; otherwise the grid of ``rate``.
        start_s: shifts all time stamps.
        options: for the encoder.
        first_scene: videos with other scenes show other pictures.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    how = (
        path.suffix,
        tuple(scenes),
        size,
        Fraction(rate),
        codec,
        pix_fmt,
        None if times_s is None else tuple(map(float, times_s)),
        start_s,
        _items(options),
        _items(metadata),
        audio,
        first_scene,
    )
    path.write_bytes(FILMS.kept(how, lambda: _encoded(*how)))
    return path


def _items(of: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple((of or {}).items())


def _encoded(
    suffix: str,
    scenes: tuple[int, ...],
    size: tuple[int, int],
    rate: Fraction,
    codec: str,
    pix_fmt: str,
    times_s: tuple[float, ...] | None,
    start_s: float,
    options: tuple[tuple[str, str], ...],
    metadata: tuple[tuple[str, str], ...],
    audio: bool,
    first_scene: int,
) -> bytes:
    scene_of = [scene for scene, frames in enumerate(scenes, first_scene) for _ in range(frames)]
    shown_s = times_s if times_s is not None else [number / float(rate) for number in range(len(scene_of))]
    tick = Fraction(1, 90000) if times_s is not None or start_s else 1 / rate
    with (
        tempfile.NamedTemporaryFile(suffix=suffix) as file,
        av.open(file.name, "w", options={"fflags": "+bitexact"}) as container,
    ):
        container.metadata.update(metadata)
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.time_base = stream.codec_context.time_base = tick
        stream.codec_context.thread_count = 1
        stream.options = {**_QUALITY.get(codec, {"crf": "12"}), **dict(options)}
        if audio:
            sound = container.add_stream("aac", rate=44100)
        for number, scene in enumerate(scene_of):
            frame = av.VideoFrame.from_ndarray(numbered_frame(number, *size, scene), "rgb24").reformat(
                format=pix_fmt
            )
            frame.pts = round((shown_s[number] + start_s) / tick)
            frame.time_base = tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if audio:
            for at in range(int(44100 * len(scene_of) / float(rate)) // 1024):
                tone = np.sin(np.arange(at * 1024, (at + 1) * 1024) * 0.06).astype(np.float32)[None]
                chunk = av.AudioFrame.from_ndarray(tone, "fltp", "mono")
                chunk.sample_rate, chunk.pts, chunk.time_base = 44100, at * 1024, Fraction(1, 44100)
                container.mux(sound.encode(chunk))
            container.mux(sound.encode(None))
        container.close()
        return Path(file.name).read_bytes()


def with_display_matrix(data: bytes, a: float, b: float, c: float, d: float) -> bytes:
    """An MP4 whose first track is shown at (a x + c y, b x + d y)."""
    at = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    values = (round(a * one), round(b * one), 0, round(c * one), round(d * one), 0, 0, 0, 1 << 30)
    return data[:at] + struct.pack(">9i", *values) + data[at + 36 :]


def sound_first(path: Path) -> Path:
    """Writes a video again with its sound as the first stream and its pictures, which have B-frames, as the second."""
    other = path.with_stem(path.stem + " sound first")
    with av.open(str(path)) as source, av.open(str(other), "w") as target:
        streams = {
            stream.index: target.add_stream_from_template(stream)
            for stream in (source.streams.audio[0], source.streams.video[0])
        }
        for packet in source.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
    return other


def read_numbers(data: bytes) -> list[int]:
    """The numbers of all frames of an encoded clip."""
    import io

    with av.open(io.BytesIO(data)) as container:
        return [read_number(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
