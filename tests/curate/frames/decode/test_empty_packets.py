"""Theora codes a picture that is shown once more as an empty packet."""

import io
from pathlib import Path

import av

from tests.cutting import curated
from tests.media import numbered_frame, read_number
from tests.player import ffmpeg


def held(path: Path, numbers: list[int]) -> None:
    """Write a film of numbered frames of 192x128 in which some repeat."""
    raw = b"".join(numbered_frame(number, 192, 128).tobytes() for number in numbers)
    words = "-f rawvideo -pix_fmt rgb24 -s 192x128 -r 25 -i - -c:v libtheora -q:v 8 -pix_fmt yuv420p"
    ffmpeg([*words.split(), str(path)], raw)


def test_an_empty_packet_shows_the_frame_before_once_more(tmp_path: Path) -> None:
    """They counted as damage up to the next key frame."""
    numbers = [number for number in range(40) for _ in range(1 + (number % 8 == 5) * 6)]
    held(tmp_path / "a.ogv", numbers)
    with av.open(str(tmp_path / "a.ogv")) as container:
        empty = sum(not packet.size and packet.pts is not None for packet in container.demux(video=0))
    assert empty > 20  # of 30 that repeat; key frames are coded anew
    ((record, clip),) = curated(tmp_path / "a.ogv", tmp_path / "out")
    assert (record.state, record.frames, record.reason) == ("kept", len(numbers), "")
    with av.open(io.BytesIO(clip)) as container:
        shown = [read_number(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert shown == numbers
