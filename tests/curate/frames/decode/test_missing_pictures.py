"""Packets that give no picture: damaged ones, and parts that were joined without their own parameter sets."""

from pathlib import Path

import av
import pytest

from tests.curate.frames.decode.test_lost_frames import damaged, film, rows_of
from tests.media import write_video
from tests.thorough import but

HEVC = "log-level=0:keyint=25:min-keyint=25:scenecut=0:"
SQUEEZED = 14
FIRST = HEVC + "ctu=64:ref=3"
SECOND = {
    "other blocks": HEVC + "ctu=32:ref=1:bframes=0:no-sao=1:no-strong-intra-smoothing=1:no-amp=1",
    "other offsets": HEVC + "ctu=64:ref=3:cbqpoffs=6:crqpoffs=-6:no-sao=1:no-signhide=1",
    "no deblocking": HEVC + "ctu=64:ref=3:no-deblock=1:no-signhide=1",
}


def sets_of(header: bytes) -> bytes:
    """Return the parameter sets of a header of HEVC (ISO/IEC 14496-15, 8.3.3.1), each behind its length."""
    sets, at = b"", 23
    for _ in range(header[22]):
        count, at = int.from_bytes(header[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            size = 2 + int.from_bytes(header[at : at + 2], "big")
            sets, at = sets + b"\0\0" + header[at : at + size], at + size
    return sets


def joined(
    path: Path, codec: str, options: list[dict[str, str]], frames: int = 50, *, in_band: bool = False
) -> Path:
    """Write parts behind one another under the parameter sets of the first one, as tools do that copy packets.

    Args:
        in_band: True to put those of the second part into its first packet.
    """
    parts = [
        write_video(
            path.with_name(f"part{part}.mp4"), (frames,), size=(256, 192), codec=codec, options=option
        )
        for part, option in enumerate(options)
    ]
    with av.open(str(parts[0])) as first, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(first.streams.video[0])
        for number, part in enumerate(parts):
            with av.open(str(part)) as source:
                begin, tick = None, 1 / (25 * source.streams.video[0].time_base)
                for packet in source.demux(video=0):
                    if packet.size:
                        if in_band and number and begin is None:
                            sets = sets_of(source.streams.video[0].codec_context.extradata)
                            packet = with_data(packet, sets + bytes(packet))
                        begin = packet.pts if begin is None else begin
                        for name in ("pts", "dts"):
                            at = getattr(packet, name) - begin + int(number * frames * tick)
                            setattr(packet, name, at)
                        packet.stream = stream
                        target.mux(packet)
    return path


def with_data(packet: av.Packet, data: bytes) -> av.Packet:
    other = av.Packet(data)
    other.pts, other.dts, other.time_base = packet.pts, packet.dts, packet.time_base
    other.duration, other.is_keyframe = packet.duration, packet.is_keyframe
    return other


def check_second_part(path: Path, joined_at_s: float, end_s: float) -> None:
    """Check that no second behind a join is kept, and that nothing is said to be cut off or held."""
    rows = rows_of(path)
    assert [row[0] for row in rows if row[2] < joined_at_s - 0.1] == ["kept"]
    assert rows[0][3] == pytest.approx(joined_at_s, abs=0.05)
    behind = rows[1:]
    assert {row[:2] for row in behind} == {("failed", "decode")}
    assert behind[-1][3] == pytest.approx(end_s, abs=0.05)
    reasons = " ".join(row[4] for row in behind)
    assert "joined with parameter sets of another part" in reasons or "damaged packets" in reasons
    assert "cut off" not in reasons
    assert "is held" not in reasons


@pytest.mark.parametrize(
    ("name", "second"),
    but(
        (("a.mp4", "other blocks"), ("a.mkv", "no deblocking")),
        [
            ("a.mp4", "other blocks"),
            ("a.mkv", "other blocks"),
            ("a.mp4", "other offsets"),
            ("a.mkv", "no deblocking"),
        ],
    ),
)
def test_hevc_joined_without_the_sets_of_its_second_part_fails_from_there(
    tmp_path: Path, name: str, second: str
) -> None:
    options = [{"preset": "fast", "x265-params": params} for params in (FIRST, SECOND[second])]
    check_second_part(joined(tmp_path / name, "libx265", options), 2.0, 4.0)


def test_hevc_joined_with_the_sets_of_its_second_part_in_one_packet_is_kept(tmp_path: Path) -> None:
    """Later key frames of that part are read by these, not by those of the container."""
    options = [{"preset": "fast", "x265-params": params} for params in (FIRST, SECOND["other blocks"])]
    path = joined(tmp_path / "a.mp4", "libx265", options, in_band=True)
    assert [(row[0], row[2], row[3]) for row in rows_of(path)] == [("kept", 0.0, 4.0)]


def test_packets_that_a_muxer_squeezed_at_a_join_are_not_missed(tmp_path: Path) -> None:
    """Tools that remove a segment copy from the key frame before on, at times made up, which say no order."""
    with (
        av.open(str(film(tmp_path / "whole.mp4", "libx265"))) as source,
        av.open(str(tmp_path / "a.mp4"), "w") as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        tick, last_dts = packets[1].dts - packets[0].dts, 0
        for number, packet in enumerate(packets):
            if 25 <= number < 25 + SQUEEZED:
                packet.pts = packet.dts = last_dts + 1
            elif number >= 25:
                packet.pts, packet.dts = packet.pts - SQUEEZED * tick, packet.dts - SQUEEZED * tick
            last_dts = packet.dts = max(packet.dts, last_dts + 1) if number else packet.dts
            packet.pts = max(packet.pts, packet.dts)
            packet.stream = stream
            target.mux(packet)
    rows = rows_of(tmp_path / "a.mp4")
    assert {row[0] for row in rows} == {"kept"}, rows


def test_pictures_that_come_later_than_their_stamps_say_are_not_missed(tmp_path: Path) -> None:
    """Some writers store times of coding alone."""
    with (
        av.open(str(film(tmp_path / "whole.mp4", "libx265"))) as source,
        av.open(str(tmp_path / "a.mp4"), "w") as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        begin = packets[0].dts
        for packet in packets:
            packet.pts = packet.dts = packet.dts - begin
            packet.stream = stream
            target.mux(packet)
    rows = rows_of(tmp_path / "a.mp4")
    assert {row[0] for row in rows} == {"kept"}, rows


def test_packets_that_give_no_picture_at_the_end_are_no_cut(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libx264")
    for number in range(60, 75):
        damaged(path, number, 4, 20_000)
    rows = rows_of(path)
    assert rows[-1][0] == "failed"
    assert rows[-1][3] == pytest.approx(3.0, abs=0.001)
    assert "joined with parameter sets of another part" in rows[-1][4]
    assert not any("cut off" in row[4] for row in rows)
