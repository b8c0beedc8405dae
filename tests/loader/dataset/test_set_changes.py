"""Streams whose parameter sets change once, and are not sent again with later key frames."""

import re
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.dataset.samples.frames.set_changes import SetChanges
from reelweave.loader.read.decode import decode
from tests.media import read_number
from tests.player import encode_numbered, ffmpeg

FRAMES, GROUP = 40, 10
CODERS = {
    "h264": ("-c:v libx264 -bf 0 -g 10 -qp {} -x264-params cabac=0:scenecut=0", (10, 38)),
    "hevc": (
        "-c:v libx265 -g 10 -x265-params log-level=none:bframes=0:scenecut=0:open-gop=0:repeat-headers=1:signhide={}",
        (1, 0),
    ),
}


def units(data: bytes) -> list[bytes]:
    starts = [found.end() for found in re.finditer(re.escape(b"\0\0\1"), data)]
    ends = [start - 3 for start in starts[1:]] + [len(data)]
    return [data[start:end].rstrip(b"\0") for start, end in zip(starts, ends, strict=True)]


def changing(path: Path, codec: str) -> Path:
    """A film of two parts, the second one with other sets, each of which is sent once."""
    coder, values = CODERS[codec]
    raw = b""
    for value in values:
        part = encode_numbered(path.with_name(f"{value}.{codec}"), FRAMES, coder.format(value)).read_bytes()
        sent = set[bytes]()
        for unit in units(part):
            is_set = unit[0] & 31 in (7, 8) if codec == "h264" else unit[0] >> 1 & 63 in (32, 33, 34)
            if not is_set or unit not in sent:
                raw += b"\0\0\0\1" + unit
            sent |= {unit} if is_set else set()
    ffmpeg([*f"-r 25 -f {codec} -i - -c copy -y".split(), str(path)], raw)
    return path


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [
        ("h264", "mp4"),
        *(
            pytest.param(codec, suffix, marks=pytest.mark.thorough)
            for codec in CODERS
            for suffix in ("mp4", "mkv")
        ),
    ],
)
def test_no_decode_begins_where_sets_of_earlier_packets_are_needed(
    tmp_path: Path, codec: str, suffix: str
) -> None:
    """Streams showed pictures by the sets of the header there, 190 levels off, without an error."""
    data = changing(tmp_path / f"film.{suffix}", codec).read_bytes()
    whole = np.zeros((3, 2 * FRAMES, 128, 160), np.uint8)
    decode(data, np.arange(2 * FRAMES), whole)
    numbers = [read_number(picture) for picture in whole.transpose(1, 2, 3, 0)]
    assert numbers == [*range(FRAMES), *range(FRAMES)]
    for first in range(0, 2 * FRAMES - 1, 7):
        window = np.zeros((3, 2, 128, 160), np.uint8)
        decode(data, np.array([first, first + 1]), window)
        assert (window == whole[:, first : first + 2]).all()


def test_sets_that_are_those_of_the_header_change_nothing() -> None:
    sequence, picture, key = b"\x67\x42\0\x1e\xab", b"\x68\xce\x3c\x80", b"\x65\x88\x84"
    start = b"\0\0\0\1"
    changes = SetChanges("h264", start + sequence + start + picture)
    assert changes.is_entry(start + sequence + start + picture + start + key)
    assert changes.is_entry(start + key)
    assert not changes.is_entry(start + b"\x68\xce\x3c\x81" + start + b"\x41\x9a")
    assert not changes.is_entry(start + key)
    assert changes.is_entry(start + sequence + start + picture + start + key)
    assert SetChanges("vp9", b"").is_entry(b"\0\0\1\x68")
