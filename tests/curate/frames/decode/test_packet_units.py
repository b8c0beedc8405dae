"""Units of H.264 and HEVC that are packets of their own, as recorders of live streams write them, and late streams."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from av.packet import Packet

from reelweave.curate.foreign.probe import probe
from reelweave.loader.dataset.samples.frames.nal_units import nal_units
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown
from reelweave.loader.read.decode import decode
from tests.cutting import curated
from tests.media import read_number, read_numbers, write_video
from tests.player import SIZE, ffmpeg
from tests.thorough import but

FRAMES = 50
WORDS = {
    "libx264": {"x264-params": "aud=1:keyint=25"},
    "libx265": {"x265-params": "aud=1:keyint=25:repeat-headers=1:log-level=none"},
}
MESSAGE = {"libx264": b"\x06\x05\x10" + bytes(range(1, 17)) + b"\x80", "libx265": b""}


def copied(source: Path, target: Path, parts: Callable[[bytes], list[bytes]]) -> Path:
    """The film with its packets of pictures in parts, each of which has a stamp one tick behind the one before."""
    with av.open(str(source)) as film, av.open(str(target), "w") as copy:
        streams = [copy.add_stream_from_template(stream) for stream in film.streams]
        for packet in film.demux():
            if not packet.size:
                continue
            stream = streams[packet.stream.index]
            for number, part in enumerate(parts(bytes(packet)) if stream.type == "video" else [packet]):
                piece = part if isinstance(part, Packet) else Packet(part)
                piece.pts, piece.dts = (packet.pts or 0) + number, (packet.dts or 0) + number
                piece.time_base, piece.stream = packet.time_base, stream
                piece.is_keyframe = packet.is_keyframe
                copy.mux(piece)
    return target


def units_alone(codec: str) -> Callable[[bytes], list[bytes]]:
    """Delimiters, parameter sets and messages as packets of their own."""

    def parts(packet: bytes) -> Iterator[bytes]:
        picture = b""
        for unit in [*filter(None, [MESSAGE[codec]]), *nal_units(packet, 4)]:
            kind = unit[0] & 31 if codec == "libx264" else unit[0] >> 1 & 63
            whole = len(unit).to_bytes(4, "big") + unit
            if kind in (range(1, 6) if codec == "libx264" else range(32)):
                picture += whole
            else:
                yield whole
        yield picture

    return lambda packet: list(parts(packet))


@pytest.mark.parametrize(
    ("codec", "suffix"),
    but(
        [("libx264", "mp4"), ("libx265", "mkv")],
        [(codec, kind) for codec in WORDS for kind in ("mp4", "mkv")],
    ),
)
def test_units_without_a_picture_come_with_the_next_one(codec: str, suffix: str, tmp_path: Path) -> None:
    """Their decoder refuses them alone, and each of them counted as damage."""
    source = write_video(
        tmp_path / "whole.mp4", (FRAMES,), codec=codec, audio=True, options={"bf": "0", **WORDS[codec]}
    )
    path = copied(source, tmp_path / f"parts.{suffix}", units_alone(codec))
    with av.open(str(path)) as film:
        assert sum(packet.size > 0 for packet in film.demux(video=0)) > 2 * FRAMES
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.reason, record.frames) == ("kept", "", FRAMES)
    assert read_numbers(clip) == list(range(FRAMES))


def test_streams_count_no_units_as_frames(tmp_path: Path) -> None:
    source = write_video(tmp_path / "whole.mp4", (FRAMES,), options={"bf": "0", **WORDS["libx264"]})
    data = copied(source, tmp_path / "parts.mp4", units_alone("libx264")).read_bytes()
    assert count_shown(data) == FRAMES
    wanted, pixels = np.array([27, 28, 40]), np.zeros((3, 3, SIZE[1], SIZE[0]), np.uint8)
    decode(data, wanted, pixels)
    assert [read_number(frame) for frame in pixels.transpose(1, 2, 3, 0)] == wanted.tolist()


def slices_alone(codec: str) -> Callable[[bytes], list[bytes]]:
    """Each slice as a packet of its own, the first with what lies before it."""

    def parts(packet: bytes) -> list[bytes]:
        found, before = list[bytes](), b""
        for unit in nal_units(packet, 4):
            kind = unit[0] & 31 if codec == "libx264" else unit[0] >> 1 & 63
            before += len(unit).to_bytes(4, "big") + unit
            if kind in (range(1, 6) if codec == "libx264" else range(32)):
                found.append(before)
                before = b""
        return found

    return parts


SLICED = {
    "libx264": {"x264-params": "slices=4:keyint=25"},
    "libx265": {"x265-params": "slices=2:ctu=16:keyint=25:log-level=none"},
}


@pytest.mark.parametrize(
    ("codec", "b_frames", "suffix"),
    but(
        [("libx264", 0, "mkv"), ("libx264", 2, "mp4"), ("libx265", 0, "mp4")],
        [
            (codec, b_frames, kind)
            for codec in SLICED
            for b_frames in (0, 2)
            for kind in ("mp4", "mkv", "flv")
        ],
    ),
)
def test_slices_that_are_packets_make_one_picture(
    codec: str, b_frames: int, suffix: str, tmp_path: Path
) -> None:
    """FFmpeg shows a picture for each slice of H.264, and of HEVC the first slice alone, without a word."""
    if (b_frames, suffix) in ((2, "mkv"), (2, "flv")) or (codec, suffix) == ("libx265", "flv"):
        pytest.skip("the stamps of parts would cross, or the container has no HEVC")
    name = "x264-params" if codec == "libx264" else "x265-params"
    words = {name: f"{SLICED[codec][name]}:bframes={b_frames}", "bf": str(b_frames)}
    source = write_video(tmp_path / "whole.mp4", (FRAMES,), codec=codec, audio=True, options=words)
    scaled = tmp_path / "scaled.mp4"
    ffmpeg(f"-i {source} -c copy -video_track_timescale 90000 -y {scaled}".split())
    path = copied(scaled, tmp_path / f"parts.{suffix}", slices_alone(codec))
    with av.open(str(path)) as film:
        assert sum(packet.size > 0 for packet in film.demux(video=0)) >= 2 * FRAMES
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.reason, record.frames) == ("kept", "", FRAMES)
    assert read_numbers(clip) == list(range(FRAMES))
    if suffix != "flv":
        found = probe(data := path.read_bytes())
        assert (found.frames, round(found.fps, 2)) == (FRAMES, 25.0)
        wanted, pixels = np.array([27, 28, 40]), np.zeros((3, 3, SIZE[1], SIZE[0]), np.uint8)
        decode(data, wanted, pixels)
        assert [read_number(frame) for frame in pixels.transpose(1, 2, 3, 0)] == wanted.tolist()


def test_a_damaged_picture_is_no_message(tmp_path: Path) -> None:
    """A slice whose type became that of a message holds none."""
    source = write_video(tmp_path / "whole.mp4", (FRAMES,), options={"bf": "0", "g": "25"})
    number = iter(range(FRAMES))
    damaged = copied(
        source,
        tmp_path / "damaged.mp4",
        lambda packet: [packet[:4] + b"\x06" + packet[5:] if next(number) == 10 else packet],
    )
    failed = [record for record, _ in curated(damaged, tmp_path / "out") if record.state == "failed"]
    assert [record.reason for record in failed] == ["1 damaged packet; frames that depend on them are unsafe"]


@pytest.mark.parametrize("programme", ["-mpegts_service_id 7 -mpegts_pmt_start_pid 5000", ""])
def test_pictures_that_go_on_in_another_stream_are_said(programme: str, tmp_path: Path) -> None:
    """PyAV does not know the streams of a further programme, and fails at the end of the file."""
    source = write_video(tmp_path / "whole.mp4", (FRAMES,), audio=True, options={"g": "25"})
    pieces = []
    for number, words in enumerate(("", f"{programme} -streamid 0:400 -streamid 1:300")):
        piece = tmp_path / f"{number}.ts"
        at = str(2 * number)
        ffmpeg(["-i", str(source), "-c", "copy", *words.split(), "-output_ts_offset", at, str(piece)])
        pieces.append(piece.read_bytes())
    (path := tmp_path / "joined.ts").write_bytes(b"".join(pieces))
    (kept, clip), (behind, _) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert read_numbers(clip) == list(range(FRAMES))
    assert "streams of pictures" not in kept.reason
    assert (behind.state, behind.start_s) == ("failed", kept.end_s)
    (at,) = re.findall(r"another stream .*`tail -c \+(\d+) FILE`", behind.reason)
    (rest := tmp_path / "rest.ts").write_bytes(path.read_bytes()[int(at) - 1 :])
    ((later, clip),) = curated(rest, tmp_path / "later", spans={"min_clip_s": 0.5})
    assert (later.state, read_numbers(clip)) == ("kept", list(range(FRAMES)))
