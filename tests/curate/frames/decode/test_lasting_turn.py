"""Pictures that H.264 and HEVC state to be turned, by a message that holds for the pictures behind it, too."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.source_pass.remarks import TURNED_TWICE
from reelweave.loader.dataset.samples.frames.nal_units import prefix_bytes
from tests.cutting import curated
from tests.media import read_number, with_display_matrix, write_video
from tests.player import ffmpeg
from tests.thorough import but

FRAMES, SIZE = 75, (192, 128)
OPTIONS = {
    "libx264": {"g": "25", "bf": "2", "sc_threshold": "0"},
    "libx265": {"preset": "ultrafast", "x265-params": "keyint=25:scenecut=0:log-level=0:open-gop=0"},
}


def message(codec: str, degrees: int, lasts: bool) -> bytes:
    """Return an SEI unit that asks for pictures to be turned against the clock."""
    bits = "000" + f"{round(degrees * 65536 / 360):016b}"
    bits += ("010" if lasts else "1") + "0" if codec == "libx264" else f"{int(lasts)}"
    bits += "1" + "0" * (-(len(bits) + 1) % 8)
    payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
    head = b"\x06" if codec == "libx264" else b"\x4e\x01"
    unit = head + bytes([47, len(payload)]) + payload + b"\x80"
    return unit.replace(b"\0\0\0", b"\0\0\3\0")


def film(path: Path, codec: str, *, every: int, degrees: int = 90, lasts: bool = True) -> Path:
    """Write a film with a message at each ``every``-th packet."""
    whole = write_video(
        path.with_name("whole.mp4"), (FRAMES,), size=SIZE, codec=codec, options=OPTIONS[codec]
    )
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        video = source.streams.video[0]
        prefix = prefix_bytes(video.codec_context.extradata or b"", "h264" if codec == "libx264" else "hevc")
        stream = target.add_stream_from_template(video)
        for number, packet in enumerate([packet for packet in source.demux(video) if packet.size]):
            data = bytes(packet)
            if number % every == 0:
                unit = message(codec, degrees, lasts)
                data = len(unit).to_bytes(prefix, "big") + unit + data
            twin = av.Packet(data)
            twin.pts, twin.dts, twin.duration = packet.pts, packet.dts, packet.duration
            twin.time_base, twin.is_keyframe, twin.stream = packet.time_base, packet.is_keyframe, stream
            target.mux(twin)
    return path


@pytest.mark.parametrize(
    ("name", "codec"),
    but(
        (("a.mp4", "libx264"), ("a.ts", "libx264"), ("a.mkv", "libx265")),
        [(name, codec) for name in ("a.mp4", "a.mkv", "a.ts") for codec in OPTIONS],
    ),
)
def test_a_message_at_each_key_frame_turns_the_whole_film(tmp_path: Path, name: str, codec: str) -> None:
    """It turned one frame of 25, and the film was cut behind each of them."""
    path = film(tmp_path / name, codec, every=25)
    ((record, clip),) = curated(path, tmp_path / "out")
    assert (record.state, record.width, record.height, record.frames) == ("kept", *SIZE[::-1], FRAMES)
    assert record.reason == "turned upright as its codec says (display orientation), which players may not do"
    with av.open(io.BytesIO(clip)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [read_number(np.rot90(picture, -1)) for picture in pictures] == list(range(FRAMES))


def test_a_turn_that_the_container_states_too_is_said(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libx264", every=25)
    path.write_bytes(with_display_matrix(path.read_bytes(), 0, -1, 1, 0))
    ((record, _),) = curated(path, tmp_path / "out")
    assert (record.width, record.height) == SIZE[::-1]
    assert record.reason == TURNED_TWICE


def test_a_message_for_its_own_picture_alone_turns_no_other(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libx264", every=1000, lasts=False)
    sizes = {record.frames: (record.width, record.height) for record, _ in curated(path, tmp_path / "out")}
    assert sizes[FRAMES - 1] == SIZE


def test_a_message_ends_with_its_coded_sequence(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libx264", every=1000)
    records = [record for record, _ in curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})]
    assert [(record.frames, record.width, record.height) for record in records] == [
        (25, *SIZE[::-1]),
        (50, *SIZE),
    ]


def test_a_piece_by_copy_shows_no_frame_that_is_cut_off(tmp_path: Path) -> None:
    whole, piece = film(tmp_path / "whole.mp4", "libx264", every=25), tmp_path / "piece.mp4"
    ffmpeg(f"-ss 1.4 -i {whole} -c copy -y {piece}".split())
    ((record, clip),) = curated(piece, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.frames, record.width, record.height) == (FRAMES - 35, *SIZE[::-1])
    with av.open(io.BytesIO(clip)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [read_number(np.rot90(picture, -1)) for picture in pictures] == list(range(35, FRAMES))
