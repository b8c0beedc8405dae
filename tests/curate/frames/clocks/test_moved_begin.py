"""MP4 whose pictures FFmpeg moves beside their sound: by edits within a frame, and negative offsets in fragments."""

import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.clocks.moved_begin import sound_shift_s
from tests.cutting import curated
from tests.fuzz.shown import by_pyav
from tests.fuzz.strange_films import raw_film
from tests.player import SIZE, ffmpeg

RATE, SECONDS = 25, 5


def film(path: Path, coder: str) -> Path:
    """Numbered frames with a click at each whole second, which stands beside frame second * RATE."""
    pictures, sound = raw_film(path.parent / "raw", str(RATE), SECONDS)
    size = "x".join(map(str, SIZE))
    words = (
        f"-f rawvideo -pix_fmt rgb24 -s {size} -r {RATE} -i {pictures} -f s16le -ar 48000 -ac 1 -i {sound}"
    )
    ffmpeg(f"{words} -pix_fmt yuv420p {coder} -c:a aac -y {path}".split())
    return path


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()


def apart_ms(path: Path) -> list[int]:
    """How far each click of a film's only clip lies behind its picture."""
    ((record, clip),) = curated(path, path.parent / "out", spans={"min_clip_s": 1.0})
    assert record.reason == ""
    seen = by_pyav(clip)
    assert seen is not None
    return [round(1000 * apart_s) for apart_s in seen.offsets_s(RATE).values()]


def with_later_edits(data: bytes, later_s: float) -> bytes:
    """An MP4 whose edits all begin later."""
    changed = bytearray(data)
    at, media_at = 0, 0
    while (at := data.find(b"elst", at + 1)) > 0:
        media_at = data.index(b"mdhd", at) + 4
        ticks = int.from_bytes(data[media_at + 12 : media_at + 16], "big")
        (time,) = struct.unpack_from(">i", data, at + 16)
        struct.pack_into(">i", changed, at + 16, time + round(later_s * ticks))
    assert media_at
    return bytes(changed)


@pytest.mark.parametrize(
    ("coder", "later_s"),
    [
        ("-c:v libx264 -bf 2", 0.007),
        *(
            pytest.param(coder, later_s, marks=pytest.mark.thorough)
            for coder in ("-c:v libx264 -bf 0", "-c:v libx265 -tag:v hvc1 -x265-params log-level=none")
            for later_s in (0.001, 0.02, 0.033, 0.04, 0.99, 1.01)
        ),
    ],
)
def test_sound_stays_in_time_where_an_edit_begins_within_a_frame(
    tmp_path: Path, coder: str, later_s: float
) -> None:
    path = film(tmp_path / "film.mp4", f"{coder} -g 25")
    path.write_bytes(with_later_edits(path.read_bytes(), later_s))
    found = apart_ms(path)
    assert len(found) >= SECONDS - 2
    assert max(map(abs, found)) <= 2


@pytest.mark.parametrize(
    ("coder", "muxer"),
    [
        ("-c:v libx264 -bf 2", "+frag_keyframe+empty_moov"),
        *(
            pytest.param(coder, muxer, marks=pytest.mark.thorough)
            for coder in ("-c:v libx264 -bf 4", "-c:v libx265 -tag:v hvc1 -x265-params log-level=none")
            for muxer in ("+frag_keyframe+empty_moov", "+cmaf+frag_keyframe", "")
        ),
    ],
)
def test_sound_stays_in_time_where_fragments_have_negative_offsets(
    tmp_path: Path, coder: str, muxer: str
) -> None:
    """FFmpeg delays the pictures by the largest of them, 40 to 80 ms."""
    path = film(tmp_path / "film.mp4", f"{coder} -g 25 -movflags {muxer}+negative_cts_offsets")
    found = apart_ms(path)
    assert len(found) == SECONDS - 1
    # Without an edit list FFmpeg's writer states the sound as late as its encoder is.
    assert max(map(abs, found)) <= 22
    if muxer:
        with av.open(str(path)) as container:
            assert not sound_shift_s(
                container.streams.video[0]
            )  # a file that FFmpeg opens by name is not read
        with av.open(io.BytesIO(path.read_bytes())) as container:
            assert sound_shift_s(container.streams.video[0]) >= Fraction(1, RATE)


def test_tables_of_any_bytes_move_nothing(tmp_path: Path) -> None:
    data = film(tmp_path / "film.mp4", "-c:v libx264 -g 25 -bf 2").read_bytes()
    rng, begin = np.random.default_rng(0), data.index(b"moov")
    for _ in range(40):
        changed = bytearray(data)
        at = int(rng.integers(begin, len(data) - 8))
        changed[at : at + 8] = rng.bytes(8)
        try:
            container = av.open(io.BytesIO(bytes(changed)), metadata_errors="replace")
        except av.FFmpegError:
            continue
        with container:
            for stream in container.streams.video:
                assert isinstance(sound_shift_s(stream), Fraction)
