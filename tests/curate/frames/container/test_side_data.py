"""Containers that say how players show pictures: colours of Dolby Vision, and edges that are cut off."""

import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset import open_dataset
from tests.curate.foreign.foreign_sets import index
from tests.curate.frames.test_segments import muxed
from tests.cutting import curated, pictures
from tests.foreign_tars import by_tarfile
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import but

TO_ENTRY = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd")
HEVC = {"x265-params": "log-level=0:keyint=25", "preset": "ultrafast"}
LOSSLESS = {"qp": "0", "preset": "ultrafast"}
SHORT: dict[str, dict[str, Any]] = {"spans": {"min_clip_s": 0.5}}


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def with_entry_box(data: bytes, added: bytes) -> bytes:
    """The film with a box behind the others of its first sample entry; its index must come last."""
    film, begin, grown = bytearray(data), 0, []
    for kind in TO_ENTRY:
        while film[begin + 4 : begin + 8] != kind:
            begin += int.from_bytes(film[begin : begin + 4], "big")
        grown.append(begin)
        begin += 8
    begin += 8
    grown.append(begin)
    end = begin + int.from_bytes(film[begin : begin + 4], "big")
    for at in grown:
        film[at : at + 4] = struct.pack(">I", int.from_bytes(film[at : at + 4], "big") + len(added))
    film[end:end] = added
    return bytes(film)


def dolby_vision(profile: int, compatible: int = 0, base: bool = True) -> bytes:
    """The box that states Dolby Vision, by its specification."""
    bits = profile << 9 | 6 << 3 | 1 << 2 | (not base) << 1 | base
    kind = b"dvcC" if profile <= 7 else b"dvvC"
    return box(kind, b"\1\0" + struct.pack(">HB", bits, compatible << 4) + bytes(19))


def aperture(width: int, height: int, right: int = 0, down: int = 0) -> bytes:
    """The box of the part that players show; its centre lies half pixels right of and below that of the picture."""
    return box(b"clap", struct.pack(">8i", width, 1, height, 1, right, 2, down, 2))


def stated(path: Path, added: bytes, **options: Any) -> Path:
    """A film whose sample entry states something more, in the container of the name."""
    whole = write_video(path.with_name("whole.mp4"), (50,), **options)
    plain = path.with_name("stated.mp4")
    plain.write_bytes(with_entry_box(whole.read_bytes(), added))
    return plain if path.suffix == ".mp4" else muxed(plain, path, {})


@pytest.mark.parametrize(
    ("name", "profile", "compatible"), [("a.mp4", 5, 0), ("a.mkv", 5, 0), ("a.mp4", 10, 0), ("a.mp4", 3, 1)]
)
def test_colours_that_only_dolby_vision_shows_fail_in_words(
    tmp_path: Path, name: str, profile: int, compatible: int
) -> None:
    path = stated(tmp_path / name, dolby_vision(profile, compatible), codec="libx265", options=HEVC)
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.stage) == ("failed", "probe")
    assert f"is Dolby Vision profile {profile}, whose colours (IPT) only Dolby Vision shows" in record.reason
    assert "-vf libplacebo=" in record.reason
    with pytest.raises(SourceError, match=f"is Dolby Vision profile {profile}"):
        probe(path.read_bytes())


UNIT = bytes.fromhex("7c01190809004061c0")  # 23 bits of coefficients, full range
WITH_BASE = bytes.fromhex("7c0119080908406140")


def with_unit(source: Path, path: Path, unit: bytes) -> Path:
    """The film with a NAL unit of Dolby Vision's metadata behind each picture, of which its container says nothing."""
    with av.open(str(source)) as film, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(film.streams.video[0])
        for packet in film.demux(video=0):
            if packet.size:
                longer = av.Packet(bytes(packet) + struct.pack(">I", len(unit)) + unit)
                longer.pts, longer.dts, longer.time_base = packet.pts, packet.dts, packet.time_base
                longer.is_keyframe, longer.stream = packet.is_keyframe, stream
                target.mux(longer)
    return path


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.hevc"])
def test_dolby_vision_is_known_by_its_metadata_where_the_container_lost_it(tmp_path: Path, name: str) -> None:
    """`ffmpeg -c copy` to MP4 leaves the box out unless it is told otherwise."""
    plain = write_video(tmp_path / "plain.mp4", (50,), codec="libx265", options=HEVC)
    path = with_unit(plain, tmp_path / "unit.mp4", UNIT)
    if name != "a.mp4":
        path = muxed(path, tmp_path / name, {})
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.stage) == ("failed", "probe")
    assert "is Dolby Vision profile 5" in record.reason
    if name in ("a.mp4", "a.ts"):
        with pytest.raises(SourceError, match="is Dolby Vision profile 5"):
            probe(path.read_bytes())
    ((record, _),) = curated(with_unit(plain, tmp_path / "base.mp4", WITH_BASE), tmp_path / "base", **SHORT)
    assert record.state == "kept"


def with_descriptor(film: bytes, descriptor: bytes) -> bytes:
    """A TS whose program map states something more of its first stream."""
    packets = [bytearray(film[at : at + 188]) for at in range(0, len(film), 188)]
    for packet in packets:
        section = packet[5:]
        if packet[1] & 0x40 and packet[4] == 0 and section[0] == 2:
            length = (section[1] & 15) << 8 | section[2]
            body = section[: 3 + length - 4]
            at = 12 + ((body[10] & 15) << 8 | body[11])
            size = ((body[at + 3] & 15) << 8 | body[at + 4]) + len(descriptor)
            body[at + 3 : at + 5] = struct.pack(">H", 0xF000 | size)
            body[at + 5 : at + 5] = descriptor
            body[1:3] = struct.pack(">H", 0xB000 | length + len(descriptor))
            crc = 0xFFFFFFFF
            for byte in body:
                crc ^= byte << 24
                for _ in range(8):
                    crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
            packet[5:] = (body + crc.to_bytes(4, "big")).ljust(183, b"\xff")
    return b"".join(packets)


def test_dolby_vision_is_known_by_the_program_map_of_ts(tmp_path: Path) -> None:
    plain = muxed(
        write_video(tmp_path / "a.mp4", (50,), codec="libx265", options=HEVC), tmp_path / "a.ts", {}
    )
    bits = 5 << 9 | 6 << 3 | 1 << 2 | 1
    stated = with_descriptor(plain.read_bytes(), b"\xb0\x05\1\0" + struct.pack(">HB", bits, 0x0F))
    plain.write_bytes(stated)
    ((record, _),) = curated(plain, tmp_path / "out", **SHORT)
    assert "is Dolby Vision profile 5" in record.reason
    with pytest.raises(SourceError, match="is Dolby Vision profile 5"):
        probe(stated)


def test_an_enhancement_layer_alone_fails_in_words(tmp_path: Path) -> None:
    box_bytes = dolby_vision(7, 6, base=False)
    path = stated(tmp_path / "a.mp4", box_bytes, codec="libx265", options=HEVC)
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert "holds an enhancement layer of Dolby Vision (profile 7) without its pictures" in record.reason


@pytest.mark.parametrize(("profile", "compatible"), but(((8, 1),), ((8, 1), (8, 4), (7, 6), (4, 2), (10, 1))))
def test_a_compatible_base_goes_on_as_without_dolby_vision(
    tmp_path: Path, profile: int, compatible: int
) -> None:
    path = stated(tmp_path / "a.mp4", dolby_vision(profile, compatible), codec="libx265", options=HEVC)
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    ((_, plain),) = curated(path.with_name("whole.mp4"), tmp_path / "plain", **SHORT)
    assert record.state == "kept"
    assert clip == plain


def test_an_index_leaves_out_dolby_vision_without_a_base_and_marks_crops(tmp_path: Path) -> None:
    vision = stated(tmp_path / "a.mp4", dolby_vision(5), codec="libx265", options=HEVC).read_bytes()
    cropped = stated(tmp_path / "a.mp4", aperture(140, 100)).read_bytes()
    contents = {"mp4": cropped, "txt": b"words"}
    by_tarfile(tmp_path / "set/a.tar", [("bars", contents), ("vision", {"mp4": vision, "txt": b"words"})])
    (note,) = index(tmp_path / "set").notes
    assert note.startswith("1 sample has edges that their container cuts off for players (attributes: crop=")
    dataset = open_dataset(tmp_path / "set")
    (row,) = map(dataset.row, dataset.row_numbers.values())
    assert (row["key"], dict(row["attributes"]), row["width"]) == ("bars", {"crop": "container"}, 160)
    (failed,) = (one for one in dataset.accounting.to_pylist() if one["state"] != "kept")
    assert "its .mp4 is Dolby Vision profile 5" in failed["reason"]


CROPS = {  # shown size, place right of and below the middle in half pixels, and the edges that this leaves
    "even.mp4": ((140, 100), (0, 0), (10, 14)),
    "aside.mkv": ((120, 96), (-12, 8), (14, 20)),
    "aside.mov": ((120, 96), (-12, 8), (14, 20)),
}


@pytest.mark.parametrize("name", but(("even.mp4", "aside.mkv"), CROPS))
def test_clips_show_what_players_show_of_a_picture(tmp_path: Path, name: str) -> None:
    """Clips, fingerprints and scores are those of a film that is stored without the edges."""
    (width, height), shift, (left, top) = CROPS[name]
    path = stated(tmp_path / name, aperture(width, height, *shift), options=LOSSLESS)
    cut = tmp_path / "stored.mp4"
    ffmpeg(
        f"-i {tmp_path}/whole.mp4 -vf crop={width}:{height}:{left}:{top} -c:v libx264 -qp 0 -y {cut}".split()
    )
    played = tmp_path / "played.yuv"
    ffmpeg(f"-i {path} -f rawvideo -y {played}".split())
    shown = np.fromfile(played, np.uint8).reshape(-1, height * 3 // 2, width)
    assert np.array_equal(shown, np.stack(pictures(cut)))
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    ((other, other_clip),) = curated(cut, tmp_path / "other", **SHORT)
    assert (record.state, record.width, record.height, record.frames) == ("kept", width, height, 50)
    assert clip == other_clip
    moved = {name for name in record.scores if name.startswith(("motion", "camera"))}
    assert {n: v for n, v in record.scores.items() if n not in moved} == {
        n: v for n, v in other.scores.items() if n not in moved
    }
    assert arrays(tmp_path / "out") == arrays(tmp_path / "other")


def arrays(out: Path) -> list[bytes]:
    """Fingerprints of all clips of a ledger."""
    return [
        values.tobytes()
        for path in sorted(out.rglob("*.npz"))
        for _, values in sorted(np.load(path, allow_pickle=False).items())
    ]


def test_packets_of_cropped_pictures_are_not_copied(tmp_path: Path) -> None:
    path = stated(tmp_path / "a.mp4", aperture(140, 100))
    ((record, _),) = curated(path, tmp_path / "out", cut={"mode": "copy"}, **SHORT)
    assert (record.state, record.reason) == ("failed", "cannot be copied: its container crops its pictures")
