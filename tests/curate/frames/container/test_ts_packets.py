"""Transport streams whose packets are sent twice, or are lost: their counters tell it, FFmpeg conceals it."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.container.ts_file import TsFile
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.samples.frames.ts_packets import TsPackets, without_repeats
from reelweave.loader.read.decode import decode
from tests.cutting import curated
from tests.media import read_number, read_numbers
from tests.player import encode_numbered

FRAMES, PACKET, PICTURES = 100, 188, 0x100
CODERS = {
    "h264": "-c:v libx264 -bf 2 -g 25",
    "hevc": "-c:v libx265 -g 25 -x265-params log-level=none",
    "mpeg2": "-c:v mpeg2video -g 12 -bf 2 -q:v 3",
}


def film(folder: Path, codec: str) -> list[bytes]:
    """The packets of a film of numbered frames."""
    data = encode_numbered(folder / f"{codec}.ts", FRAMES, CODERS[codec]).read_bytes()
    return [data[at : at + PACKET] for at in range(0, len(data), PACKET)]


def is_of_pictures(packet: bytes) -> bool:
    return (packet[1] & 31) << 8 | packet[2] == PICTURES


def is_begin(packet: bytes) -> bool:
    return bool(packet[1] & 0x40)


def sent_twice(packets: Sequence[bytes], which: Callable[[int, bytes], bool]) -> bytes:
    """A film in which some packets come again, with another clock where they hold one."""
    found: list[bytes] = []
    for number, packet in enumerate(packets):
        found.append(packet)
        if packet[3] & 0x10 and which(number, packet):
            again = bytearray(packet)
            if again[3] & 0x20 and again[4] >= 7 and again[5] & 0x10:
                again[9] ^= 1
            found.append(bytes(again))
    return b"".join(found)


def in_m2ts(data: bytes) -> bytes:
    return b"".join(b"\0\0\0\7" + data[at : at + PACKET] for at in range(0, len(data), PACKET))


@pytest.mark.parametrize(
    "codec", ["hevc", *(pytest.param(codec, marks=pytest.mark.thorough) for codec in ("h264", "mpeg2"))]
)
@pytest.mark.parametrize(
    "form", [bytes, pytest.param(in_m2ts, marks=pytest.mark.thorough)], ids=["ts", "m2ts"]
)
def test_packets_that_are_sent_twice_are_read_once(
    tmp_path: Path, codec: str, form: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "twice.ts"
    path.write_bytes(form(sent_twice(film(tmp_path, codec), lambda number, packet: True)))
    (record, clip), *others = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (read_numbers(clip), record.reason, others) == (list(range(FRAMES)), "", [])
    assert probe(path.read_bytes()).frames == FRAMES
    video = np.zeros((3, 4, 128, 160), np.uint8)
    decode(path.read_bytes(), np.array([3, 40, 41, 99]), video)
    assert [read_number(picture) for picture in video.transpose(1, 2, 3, 0)] == [3, 40, 41, 99]


@pytest.mark.parametrize(
    "codec", ["hevc", *(pytest.param(codec, marks=pytest.mark.thorough) for codec in ("h264", "mpeg2"))]
)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))]
)
def test_no_clip_shows_pictures_of_which_packets_are_lost(tmp_path: Path, codec: str, seed: int) -> None:
    """Of three lost packets FFmpeg shows up to 35 wrong pictures of HEVC, without an error."""
    packets, rng = film(tmp_path, codec), np.random.default_rng(seed)
    within = [
        number
        for number, packet in enumerate(packets)
        if is_of_pictures(packet) and not is_begin(packet) and number > len(packets) // 5
    ]
    lost = set(rng.choice(within, 3).tolist())
    path = tmp_path / "lost.ts"
    path.write_bytes(b"".join(packet for number, packet in enumerate(packets) if number not in lost))
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})
    for record, clip in records:
        if clip:
            first = round(record.start_s * 25)
            assert read_numbers(clip) == list(range(first, first + record.frames))
    failed = [record for record, _ in records if record.state == "failed"]
    assert failed
    with pytest.raises(SourceError, match="packets of its transport stream are lost"):
        probe(path.read_bytes())


def test_packets_that_a_receiver_marked_as_wrong_are_damage(tmp_path: Path) -> None:
    packets = film(tmp_path, "hevc")
    number = next(
        number
        for number, packet in enumerate(packets)
        if number > 60 and is_of_pictures(packet) and packet[7:]
    )
    packets[number] = packets[number][:1] + bytes((packets[number][1] | 0x80,)) + packets[number][2:]
    path = tmp_path / "marked.ts"
    path.write_bytes(b"".join(packets))
    assert any("its transport stream" in record.reason for record, _ in curated(path, tmp_path / "out"))


def test_joined_recordings_whose_counters_begin_anew_are_whole(tmp_path: Path) -> None:
    """Segments of a stream often count from 0 each; the unit before a join ends in a packet that is filled up."""
    packets = film(tmp_path, "h264") * 2
    data = b"".join(packets)
    view = TsFile(io.BytesIO(data), PACKET, 0)
    assert view.read() == data
    units = [PACKET * number for number, packet in enumerate(packets) if is_of_pictures(packet)]
    assert not any(map(view.is_damaged, units))


def test_counters_that_do_not_count_tell_nothing(tmp_path: Path) -> None:
    packets = [bytearray(packet) for packet in film(tmp_path, "h264")]
    for packet in packets:
        packet[3] &= 0xF0
    data = b"".join(map(bytes, packets))
    counted = TsPackets(PACKET)
    counted.take(memoryview(bytearray(data)), 0)
    assert not counted.damaged


def test_packets_without_a_payload_may_count_or_not(tmp_path: Path) -> None:
    packets, added = film(tmp_path, "h264"), 0
    for counts in (False, True):
        data = b""
        for number, packet in enumerate(packets):
            counter = packet[3] + added & 15
            data += packet[:3] + bytes((packet[3] & 0xF0 | counter,)) + packet[4:]
            if is_of_pictures(packet) and number % 13 == 0:
                added += counts
                empty = bytes((0x47, 1, 0, 0x20 | counter + counts & 15, 183, 0)) + b"\xff" * 182
                data += empty
            if not is_of_pictures(packet):
                data = data[:-PACKET] + packet
        looked_at = TsPackets(PACKET)
        looked_at.take(memoryview(bytearray(data)), 0)
        assert (looked_at.damaged, looked_at.repeats) == (set(), 0)


@pytest.mark.parametrize("begin", [0, 100])
def test_a_view_reads_the_same_from_any_place(tmp_path: Path, begin: int) -> None:
    twice = sent_twice(film(tmp_path, "h264"), lambda number, packet: number % 7 == 0)
    data = bytes(begin) + twice * 12  # more than a block
    whole = TsFile(io.BytesIO(data), PACKET, begin).read()
    assert len(whole) == len(data)
    assert whole != data
    view, rng = TsFile(io.BytesIO(data), PACKET, begin), np.random.default_rng(0)
    for at in rng.integers(0, len(data), 40).tolist():
        view.seek(at)
        part = view.read(5000)
        assert part
        assert part == whole[at : at + len(part)]
    assert view.seek(0, io.SEEK_END) == len(data)
    assert view.read(10) == b""


def test_bytes_that_are_missing_within_a_packet_move_those_behind_it(tmp_path: Path) -> None:
    twice = sent_twice(film(tmp_path, "h264"), lambda number, packet: number % 7 == 0)
    at = 100 * PACKET
    whole, cut = TsFile(io.BytesIO(twice), PACKET, 0).read(), twice[: at + 50] + twice[at + 90 :]
    read = TsFile(io.BytesIO(cut), PACKET, 0).read()
    assert len(read) == len(cut)
    assert read[-50 * PACKET :] == whole[-50 * PACKET :]


def test_other_files_are_left_as_they_are() -> None:
    data = bytes(np.random.default_rng(1).integers(0, 256, 5000, np.uint8))
    assert without_repeats(data) is data
    assert without_repeats(b"G" + data) == b"G" + data
