"""Frames of H.264 and HEVC whose headers understate how far coding moves them."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.loader.dataset.samples.frames.picture_order import shown_positions
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown, decoded_frames, read_times
from tests.cutting import curated
from tests.media import read_number, read_numbers, write_video
from tests.player import ffmpeg
from tests.reordering import FRAMES, OPTIONS, understate, understated_film
from tests.thorough import but

ALL = list(range(FRAMES))
FILMS = but(
    (("a.mkv", "libx264", 0), ("a.avi", "libx264", 0), ("whole.mp4", "libx265", 0)),
    [
        ("a.mkv", "libx264", 0),
        ("a.mkv", "libx264", 1),
        ("a.ts", "libx264", 0),
        ("a.flv", "libx264", 0),
        ("a.avi", "libx264", 0),
        ("a.h264", "libx264", 0),
        ("fragments.mp4", "libx264", 0),
        ("whole.mp4", "libx264", 0),
        ("whole.mp4", "libx265", 0),
        ("a.mkv", "libx265", 0),
        ("a.ts", "libx265", 1),
    ],
)


@pytest.mark.parametrize(("name", "codec", "depth"), FILMS)
def test_every_frame_of_a_film_that_understates_its_order_is_in_a_clip(
    name: str, codec: str, depth: int, tmp_path: Path
) -> None:
    path = understated_film(tmp_path, name, codec, depth)
    ((record, clip),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.reason, record.frames) == ("kept", "", FRAMES)
    assert read_numbers(clip) == ALL


LOADED = but(
    (("a.mkv", "libx264"), ("a.mkv", "libx265")),
    [
        ("a.mkv", "libx264"),
        ("a.avi", "libx264"),
        ("fragments.mp4", "libx264"),
        ("a.mkv", "libx265"),
        ("a.mp4", "libx265"),
    ],
)


@pytest.mark.parametrize(("name", "codec"), LOADED)
def test_every_frame_of_a_foreign_clip_that_understates_its_order_is_loaded(
    name: str, codec: str, tmp_path: Path
) -> None:
    clip = understated_film(tmp_path, name.replace("a.mp4", "whole.mp4"), codec).read_bytes()
    shown = [read_number(frame.to_ndarray(format="rgb24")) for frame in decoded_frames(clip)]
    assert shown == ALL
    assert (probe(clip).frames, count_shown(clip)) == (FRAMES, FRAMES)
    if not name.endswith(".avi"):
        np.testing.assert_allclose(read_times(clip), np.arange(FRAMES) / 25, atol=0.002)


def test_frames_that_come_too_late_behind_the_first_packets_are_counted(tmp_path: Path) -> None:
    film, path = tmp_path / "film.mp4", tmp_path / "film.mkv"
    x264 = "bframes=8:b-adapt=0:b-pyramid=normal:keyint=100:scenecut=0"
    keys = ["-force_key_frames", "expr:lt(n,100)"]  # between which no frame is moved
    pictures = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=8", "-pix_fmt", "yuv420p"]
    ffmpeg([*pictures, "-c:v", "libx264", *keys, "-x264-params", x264, str(film)])
    understate(film, 0)
    ffmpeg(["-i", str(film), "-c", "copy", str(path)])
    clips = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert sum(record.frames for record, _ in clips if record.state == "kept") < 150
    reasons = {record.reason for record, _ in clips if record.state == "failed"}
    assert len(reasons) == 1
    assert "understates how far frames are moved in coding, and frames are lost" in reasons.pop()


def test_damage_behind_frames_that_came_too_late_has_a_reason_of_its_own(tmp_path: Path) -> None:
    """The reason of the first loss was given for all damage behind it."""
    film, path, damaged = (tmp_path / name for name in ("film.mp4", "film.mkv", "damaged.mkv"))
    x264 = "bframes=8:b-adapt=0:b-pyramid=normal:keyint=100:scenecut=0"
    keys = ["-force_key_frames", "expr:lt(n,100)+gt(n,150)"]
    pictures = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=10", "-pix_fmt", "yuv420p"]
    ffmpeg([*pictures, "-c:v", "libx264", *keys, "-x264-params", x264, str(film)])
    understate(film, 0)
    ffmpeg(["-i", str(film), "-c", "copy", str(path)])
    noise = "noise=amount='if(between(pts,8000,8010),3,0)'"
    ffmpeg(["-i", str(path), "-c", "copy", "-bsf:v", noise, str(damaged)])
    clips = curated(damaged, tmp_path / "out", stitch={"enabled": False})
    reasons = [record.reason for record, _ in clips if record.state == "failed"]
    assert any("understates how far frames are moved" in reason for reason in reasons), reasons
    assert any("damaged packet" in reason for reason in reasons), reasons


def delay_keys(source: Path, path: Path, packets: int, late_s: float) -> Path:
    """The film with later stamps for each key frame but the first, and for the packets behind it."""
    with av.open(str(source)) as film, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(film.streams.video[0])
        since_key, is_first = 0, True
        for packet in film.demux(video=0):
            if not packet.size:
                continue
            since_key = 0 if packet.is_keyframe else since_key + 1
            is_first &= since_key > 0 or packet.pts == 0
            if not is_first and since_key < packets:
                packet.pts += round(late_s / packet.time_base)
            packet.stream = stream
            target.mux(packet)
    return path


@pytest.mark.parametrize(
    ("name", "codec", "packets"),
    but(
        (("a.mkv", "libx265", 1), ("a.ts", "libx264", 1)),
        [
            ("a.mkv", "libx265", 1),
            ("a.ts", "libx264", 1),
            ("a.mp4", "libx265", 1),
            ("a.mp4", "libx264", 1),
            ("a.mkv", "libx265", 2),
            ("a.mkv", "libx264", 5),
        ],
    ),
)
def test_key_frames_with_late_stamps_lose_and_move_no_picture(
    name: str, codec: str, packets: int, tmp_path: Path
) -> None:
    """Their headers are right: what comes late is a stamp."""
    source = write_video(
        tmp_path / "right.mkv", (FRAMES,), codec=codec, options={**OPTIONS[codec], "g": "25"}
    )
    path = delay_keys(source, tmp_path / name, packets, 0.1)
    ((record, clip),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.reason, record.frames) == ("kept", "", FRAMES)
    assert read_numbers(clip) == ALL


def test_stamps_that_a_muxer_squeezed_tell_no_order(tmp_path: Path) -> None:
    """A camera's clock steps back, and the muxer writes a tick for each frame until the old time is reached."""
    source = write_video(tmp_path / "right.mp4", (FRAMES,), options={**OPTIONS["libx264"], "g": "25"})
    path, last = tmp_path / "a.mp4", -(1 << 40)
    with (
        av.open(str(source)) as film,
        av.open(str(path), "w", options={"video_track_timescale": "90000"}) as to,
    ):
        stream = to.add_stream_from_template(film.streams.video[0])
        for packet in film.demux(video=0):
            if packet.size:
                dts, pts = (round(ticks * packet.time_base * 90000) for ticks in (packet.dts, packet.pts))
                if dts >= 90000:
                    dts, pts = dts - 54000, pts - 54000
                dts = max(dts, last + 1)
                packet.time_base, packet.dts, packet.pts = Fraction(1, 90000), dts, max(pts, dts)
                last, packet.stream = dts, stream
                to.mux(packet)
    records = [record for record, _ in curated(path, tmp_path / "out", spans={"min_clip_s": 0.04})]
    assert {record.state for record in records} == {"kept"}, [record.reason for record in records]


def test_the_order_of_hevc_is_read_off_its_slices(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", (FRAMES,), codec="libx265", options=OPTIONS["libx265"])
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        header = bytes(stream.codec_context.extradata or b"")
    stamps = sorted(packet.pts for packet in packets)
    places = [stamps.index(packet.pts) for packet in packets]
    assert places != sorted(places)
    assert shown_positions(header, map(bytes, packets)) == places
    assert shown_positions(b"", map(bytes, packets)) is None
    assert shown_positions(header, [b"\0\0\1"]) is not None
    for end in range(len(header)):
        shown_positions(header[:end], map(bytes, packets[:3]))
