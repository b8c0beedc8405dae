"""AVI stores times of coding alone: where frames are moved, holes among them still tell which pictures are held."""

import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.frames.container.avi_index import held_slots
from reelweave.curate.source_pass.remarks import CODED
from reelweave.curate.source_pass.scan import scan
from tests.cutting import curated, sound
from tests.media import numbered_frame, read_numbers, write_video

FRAMES, GROUP, HOLE = 60, 20, 12
ONE_SHOT = {"detector": "fixed", "fixed": {"stride_s": 9}}


def film(path: Path, codec: str, first: int, b_frames: int) -> Path:
    """Write numbered frames as AVI, whose packets from one on come 12 frames later, behind empty slots."""
    options = {"bf": str(b_frames), "g": str(GROUP)}
    whole = write_video(path.with_name("whole.avi"), (FRAMES,), codec=codec, options=options)
    with av.open(whole) as source, av.open(path, "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        copy.time_base = Fraction(1, 25)
        for coded, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            packet.stream, packet.time_base = copy, Fraction(1, 25)
            packet.dts = coded + (HOLE if coded >= first else 0)
            packet.pts = packet.dts + b_frames + 1
            target.mux(packet)
    return path


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("first", [1, 2 * GROUP])
def test_a_hole_among_moved_frames_is_a_picture_that_is_held(codec: str, first: int, tmp_path: Path) -> None:
    path = film(tmp_path / "held.avi", codec, first, 2)
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    held = first - 1
    assert read_numbers(clip) == [*range(held), *[held] * (HOLE + 1), *range(first, FRAMES)]
    assert CODED in record.reason


@pytest.mark.parametrize(
    ("codec", "first", "b_frames"),
    [("mpeg4", FRAMES, 2), ("mpeg4", 2 * GROUP, 0), ("libx264", 2 * GROUP, 0)],
)
def test_without_holes_or_moved_frames_nothing_is_in_doubt(
    codec: str, first: int, b_frames: int, tmp_path: Path
) -> None:
    path = film(tmp_path / "plain.avi", codec, first, b_frames)
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    held = [first - 1] * HOLE if first < FRAMES else []
    assert read_numbers(clip) == sorted([*range(FRAMES), *held])
    assert CODED not in record.reason


@pytest.mark.parametrize("codec", ["mjpeg", "libx264"])
def test_sound_lies_beside_pictures_that_begin_behind_empty_slots(codec: str, tmp_path: Path) -> None:
    path, lead = tmp_path / "late.avi", 5
    with av.open(path, "w") as target:
        pictures = target.add_stream(codec, rate=25, options={"g": "1"} if codec == "libx264" else {})
        pictures.width, pictures.height = 160, 128
        pictures.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        tone = target.add_stream("pcm_s16le", rate=48000, layout="mono")
        for number in range(75):
            picture = av.VideoFrame.from_ndarray(np.full((128, 160, 3), 2 * number, np.uint8)).reformat(
                format=pictures.pix_fmt
            )
            picture.pts = number
            target.mux(pictures.encode(picture))
            samples = np.full((1, 1920), 9000 if number >= 25 else 0, np.int16)
            heard = av.AudioFrame.from_ndarray(samples, "s16", "mono")
            heard.sample_rate, heard.pts = 48000, 1920 * number
            target.mux(tone.encode(heard))
        target.mux(pictures.encode(None))
    path.write_bytes(without_pictures(path.read_bytes(), 0, lead))
    ((_, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    samples, rate, first = sound(clip)
    onset_s = (int(np.argmax(np.abs(samples[0]) > 0.1)) + first) / rate
    assert onset_s == pytest.approx(1 - lead / 25, abs=0.005)


def without_pictures(data: bytes, first: int, last: int) -> bytes:
    """An AVI whose chunks of pictures from one to another are empty, with junk of the same size behind each."""
    film, at, index = bytearray(data), data.index(b"movi"), data.index(b"idx1")
    for number in range(last):
        at, index = film.index(b"00dc", at), film.index(b"00dc", index)
        (size,) = struct.unpack_from("<I", film, at + 4)
        if number >= first:
            film[at + 4 : at + 16] = struct.pack("<I4sI", 0, b"JUNK", size - 8)
            film[index + 12 : index + 16] = bytes(4)
        at, index = at + 8 + size, index + 16
    return bytes(film)


def test_a_last_picture_is_held_over_empty_slots(tmp_path: Path) -> None:
    path = write_video(tmp_path / "held.avi", (60,), codec="mjpeg", pix_fmt="yuvj420p")
    path.write_bytes(without_pictures(path.read_bytes(), 40, 60))
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    assert (record.state, record.reason) == ("kept", "")
    assert read_numbers(clip) == [*range(40), *[39] * 20]


class Counted(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


def test_an_index_that_never_comes_is_not_looked_for_without_end() -> None:
    file = Counted(b"RIFF" + struct.pack("<I", 1 << 20) + b"AVI " + bytes(1 << 20))
    assert held_slots(file, 0) == 0
    assert file.reads < 100


def test_h264_in_asf_is_shown_at_its_own_times(tmp_path: Path) -> None:
    """PyAV asks FFmpeg for guesses of missing stamps, which are those of the next packet."""
    path, hold = tmp_path / "a.wmv", 20
    with av.open(path, "w", format="asf") as target:
        pictures = target.add_stream("libx264", rate=25, options={"bf": "0"})
        pictures.width, pictures.height, pictures.pix_fmt = 192, 128, "yuv420p"
        pictures.codec_context.time_base = Fraction(1, 25)
        for number in range(FRAMES):
            picture = av.VideoFrame.from_ndarray(numbered_frame(number, 192, 128))
            picture.pts, picture.time_base = number + (hold if number > 30 else 0), Fraction(1, 25)
            target.mux(pictures.encode(picture))
        target.mux(pictures.encode(None))
    with av.open(path) as container:
        (begin_s, *_) = (float(packet.dts * packet.time_base) for packet in container.demux() if packet.size)
    with path.open("rb") as file, scan(file, SourceStageConfig()) as scanned:
        assert float(scanned.begin_pts) / 1000 == pytest.approx(begin_s)
        gaps_s = np.diff(scanned.timeline.times_s)
    assert np.flatnonzero(gaps_s > 0.1).tolist() == [30]
    ((_, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    assert read_numbers(clip) == sorted([*range(FRAMES), *[30] * hold])


@pytest.mark.parametrize("suffix", [".mov", ".mkv"])
def test_stamps_that_are_times_of_coding_keep_a_hole_among_them(suffix: str, tmp_path: Path) -> None:
    """As copies from AVI and MXF into other containers leave them."""
    path, first = tmp_path / f"held{suffix}", 2 * GROUP
    whole = write_video(tmp_path / "whole.mkv", (FRAMES,), options={"bf": "2", "g": str(GROUP)})
    with av.open(whole) as source, av.open(path, "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        for coded, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            packet.stream, packet.time_base = copy, Fraction(1, 25)
            packet.pts = packet.dts = coded + (HOLE if coded >= first else 0)
            packet.duration = 1
            target.mux(packet)
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    assert read_numbers(clip) == sorted([*range(FRAMES), *[first - 1] * HOLE])
    assert CODED in record.reason
