"""Videos of flat blocks of known colours under any colour tags, and the colours that a reader of tags sees."""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame

BLOCK = 16
ROWS, COLUMNS = 6, 8

# ITU-T H.273: codes of matrices, and their weights of red and blue.
_WEIGHTS = {
    0: (0.2126, 0.0722),
    1: (0.2126, 0.0722),
    2: (0.299, 0.114),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}


@dataclass(frozen=True)
class Tags:
    """Colour of a stream in codes of ITU-T H.273; range 1 is limited, 2 full."""

    primaries: int = 2
    transfer: int = 2
    matrix: int = 2
    range: int = 0

    @classmethod
    def of(cls, frame: VideoFrame) -> "Tags":
        return cls(
            int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), int(frame.color_range)
        )


BT709, BT601, BT2020_SDR = Tags(1, 1, 1, 1), Tags(6, 6, 6, 1), Tags(9, 14, 9, 1)
PQ, HLG = Tags(9, 16, 9, 1), Tags(9, 18, 9, 1)


def blocks(low: float = 0.1, high: float = 0.9) -> np.ndarray:
    """Colours [ROWS, COLUMNS, 3] in [0, 1], with strong ones among them, by which matrices differ."""
    return np.random.default_rng(7).uniform(low, high, (ROWS, COLUMNS, 3)).round(2)


def write_blocks(
    path: Path,
    colours: np.ndarray,
    pix_fmt: str,
    tags: Tags,
    *,
    codec: str = "libx264",
    frames: int = 10,
    aspect: Fraction | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Write a video of blocks, encoded without visible loss; the samples follow from the tags by formula."""
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = COLUMNS * BLOCK, ROWS * BLOCK, pix_fmt
        context = stream.codec_context
        context.thread_count = 1
        context.color_primaries, context.color_trc = tags.primaries, tags.transfer
        context.colorspace, context.color_range = tags.matrix, tags.range
        if aspect is not None:
            context.sample_aspect_ratio = aspect
        stream.options = options or {"crf": "4"}
        for number in range(frames):
            frame = _frame(colours, pix_fmt, tags)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _frame(colours: np.ndarray, pix_fmt: str, tags: Tags) -> VideoFrame:
    frame = VideoFrame(COLUMNS * BLOCK, ROWS * BLOCK, pix_fmt)
    bits = frame.format.components[0].bits
    most, step = 2**bits - 1, 2.0 ** (bits - 8)
    if pix_fmt.startswith("gbr"):
        planes = [colours[..., channel] * most for channel in (1, 2, 0)]
    else:
        red_weight, blue_weight = _WEIGHTS[tags.matrix]
        red, green, blue = np.moveaxis(colours, -1, 0)
        luma = red_weight * red + (1 - red_weight - blue_weight) * green + blue_weight * blue
        chroma = [(blue - luma) / (2 - 2 * blue_weight), (red - luma) / (2 - 2 * red_weight)]
        if tags.range == 2:
            planes = [luma * most] + [each * most + 128 * step for each in chroma]
        else:
            planes = [(luma * 219 + 16) * step] + [(each * 224 + 128) * step for each in chroma]
    kind = "<u2" if bits > 8 else np.uint8
    for plane, values in zip(frame.planes, planes, strict=True):
        wide = values.round().repeat(plane.height // ROWS, 0).repeat(plane.width // COLUMNS, 1)
        line = plane.line_size // np.dtype(kind).itemsize
        padded = np.zeros((plane.height, line), kind)
        padded[:, : plane.width] = wide
        plane.update(padded)
    frame.color_range, frame.colorspace = tags.range, tags.matrix
    frame.color_primaries, frame.color_trc = tags.primaries, tags.transfer
    return frame


def shown(frame: VideoFrame) -> np.ndarray:
    """Colours of the blocks, [ROWS, COLUMNS, 3] in [0, 1], of a frame as its own tags say."""
    tags, bits = Tags.of(frame), frame.format.components[0].bits
    most, step = 2**bits - 1, 2.0 ** (bits - 8)
    values = [centres(_samples(plane, bits)) for plane in frame.planes]
    if frame.format.is_rgb:
        return np.stack([values[2], values[0], values[1]], -1) / most
    if tags.range == 2 or frame.format.name.startswith("yuvj"):
        luma, *chroma = values[0] / most, *((each - 128 * step) / most for each in values[1:])
    else:
        luma, *chroma = (
            (values[0] / step - 16) / 219,
            *((each / step - 128) / 224 for each in values[1:]),
        )
    red_weight, blue_weight = _WEIGHTS[tags.matrix]
    blue = luma + chroma[0] * (2 - 2 * blue_weight)
    red = luma + chroma[1] * (2 - 2 * red_weight)
    return np.stack(
        [red, (luma - red_weight * red - blue_weight * blue) / (1 - red_weight - blue_weight), blue], -1
    )


def _samples(plane: av.video.plane.VideoPlane, bits: int) -> np.ndarray:
    kind = "<u2" if bits > 8 else np.uint8
    return np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)[:, : plane.width].astype(float)


def centres(picture: np.ndarray) -> np.ndarray:
    """Means of the middles of the blocks of a picture [height, width, ...] of any size."""
    height, width = picture.shape[:2]
    edges = [np.linspace(0, size, count + 1) for size, count in ((height, ROWS), (width, COLUMNS))]
    spans = [
        [
            (round((3 * a + b) / 4), max(round((3 * a + b) / 4) + 1, round((a + 3 * b) / 4)))
            for a, b in itertools.pairwise(e)
        ]
        for e in edges
    ]
    return np.array([[picture[a:b, c:d].mean((0, 1)) for c, d in spans[1]] for a, b in spans[0]])
