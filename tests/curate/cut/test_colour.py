"""Clips show the colours of their sources to a reader that believes their tags."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from loader.read.decode import decode
from tests.colours import BT601, BT709, BT2020_SDR, Tags, blocks, centres, shown, write_blocks
from tests.cutting import clips_of
from tests.thorough import but

_HALF = Fraction(4, 3)
SOURCES: dict[str, tuple[str, Tags, dict[str, Any]]] = {
    "BT.601": ("yuv420p", BT601, {}),
    "no tags": ("yuv420p", Tags(), {}),
    "BT.709, full range": ("yuvj420p", Tags(1, 1, 1, 2), {}),
    "BT.709, 4:2:2": ("yuv422p", BT709, {}),
    "BT.709, 4:4:4 of full range and 10 bits": ("yuv444p10le", Tags(1, 1, 1, 2), {}),
    "BT.709, anamorphic": ("yuv420p", BT709, {"aspect": _HALF}),
    "BT.2020 SDR, 10 bits": ("yuv420p10le", BT2020_SDR, {}),
    "BT.2020 SDR, 4:2:2": ("yuv422p", BT2020_SDR, {}),
    "BT.2020 SDR, 4:2:2 of 10 bits, anamorphic": ("yuv422p10le", BT2020_SDR, {"aspect": _HALF}),
    "SMPTE 240M": ("yuv420p", Tags(7, 7, 7, 1), {}),
    "Display P3 with sRGB's curve": ("yuv420p", Tags(12, 13, 1, 1), {}),
    "RGB": ("gbrp", Tags(), {"codec": "libx265", "options": {"x265-params": "lossless=1:log-level=none"}}),
}
MATRIX_OF = {"RGB": 1}


@pytest.mark.parametrize(
    "kind",
    but(
        ("BT.709, 4:2:2", "BT.709, full range", "BT.2020 SDR, 10 bits", "RGB", "BT.709, anamorphic"), SOURCES
    ),
)
def test_colours_and_tags_of_a_source_are_kept(kind: str, tmp_path: Path) -> None:
    pix_fmt, tags, more = SOURCES[kind]
    colours = blocks()
    path = write_blocks(tmp_path / "a.mp4", colours, pix_fmt, tags, **more)
    (clip,) = clips_of(path)
    with av.open(io.BytesIO(clip.data)) as container:
        context = container.streams.video[0].codec_context  # as the container says
        frame = list(container.decode(video=0))[5]
    seen = Tags.of(frame)
    matrix = MATRIX_OF.get(kind, tags.matrix)
    assert (seen.primaries, seen.transfer, seen.matrix) == (tags.primaries, tags.transfer, matrix)
    assert seen.range == 1 or (seen.range == tags.range == 0)
    said = Tags(
        int(context.color_primaries),
        int(context.color_trc),
        int(context.colorspace),
        int(context.color_range),
    )
    assert said == seen
    assert np.abs(shown(frame) - colours).max() < 4 / 255
    trained = np.empty((3, 1, frame.height, frame.width), np.uint8)
    decode(clip.data, np.array([5]), trained)
    assert np.abs(centres(trained[:, 0].transpose(1, 2, 0)) / 255 - colours).max() < 5 / 255
