"""Films that were joined in one file: what is not read of it has a row that says so."""

from pathlib import Path

import pytest

from reelweave.curate.foreign.probe import probe
from tests.curate.frames.container.test_side_data import TO_ENTRY
from tests.cutting import curated
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import but

UNREAD = {
    "mp4": "-c:v libx264 -c:a aac",
    "mov": "-c:v libx264 -c:a aac",
    "flv": "-c:v libx264 -c:a aac -ar 44100",
    "wmv": "-c:v wmv2 -c:a wmav2",
    "ivf": "-c:v libvpx -an",
    "ogv": "-c:v libtheora -c:a libvorbis",
    "apng": "-f apng -an",
}
READ = {
    "mkv": "-c:v libx264 -c:a aac",
    "ts": "-c:v libx264 -c:a aac",
    "gif": "-an",
}
BEHIND = "another film lies behind this one in the file (from byte {}"


def film(folder: Path, suffix: str, encoder: str) -> bytes:
    path = folder / f"one.{suffix}"
    pixels = "" if suffix in ("gif", "apng") else "-pix_fmt yuv420p"
    drawn = "-f lavfi -i testsrc2=s=160x96:r=25:d=2 -f lavfi -i sine=f=300:d=2"
    ffmpeg([*drawn.split(), *f"{pixels} {encoder}".split(), "-y", str(path)])
    return path.read_bytes()


@pytest.mark.parametrize("suffix", but(("mp4", "flv", "ivf"), tuple(UNREAD)))
def test_a_film_behind_the_first_one_has_a_row(suffix: str, tmp_path: Path) -> None:
    data, options = film(tmp_path, suffix, UNREAD[suffix]), {"spans": {"min_clip_s": 0.5}}
    alone, joined = tmp_path / f"alone.{suffix}", tmp_path / f"joined.{suffix}"
    alone.write_bytes(data)
    joined.write_bytes(data + film(tmp_path, suffix, UNREAD[suffix]))  # of another serial number in Ogg
    ((one, clip),) = curated(alone, tmp_path / "alone", **options)
    records = curated(joined, tmp_path / "out", **options)
    assert (one.state, one.frames) == ("kept", 50)
    *_, (last, _) = records
    assert (last.state, last.stage) == ("failed", "decode")
    assert last.reason.startswith(BEHIND.format(f"{len(data)} on)"))
    assert last.reason.endswith(f"split the file, as by `tail -c +{len(data) + 1} FILE`")
    assert last.start_s == last.end_s
    if suffix not in ("ivf", "ogv"):  # where the beginning of the second film damages the end of the first
        assert records[0][1] == clip
        assert len(records) == 2


@pytest.mark.parametrize("suffix", but(("mkv",), ("mkv", "ts", "avi", "flv", "ogv", "wmv")))
def test_another_container_behind_an_mp4_has_a_row(suffix: str, tmp_path: Path) -> None:
    """It was in no row, and index did not mark it."""
    data, encoder = film(tmp_path, "mp4", UNREAD["mp4"]), {**UNREAD, **READ, "avi": "-c:v mpeg4"}[suffix]
    path = tmp_path / "joined.mp4"
    path.write_bytes(data + film(tmp_path, suffix, encoder))
    (one, _), (last, _) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (one.state, one.frames, last.state) == ("kept", 50, "failed")
    assert last.reason.startswith(BEHIND.format(f"{len(data)} on)"))
    assert probe(path.read_bytes()).rest
    assert not probe(data).rest


@pytest.mark.parametrize("suffix", but(("mkv",), tuple(READ)))
def test_a_film_that_is_read_on_has_none(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"joined.{suffix}"
    path.write_bytes(film(tmp_path, suffix, READ[suffix]) * 2)
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert sum(record.frames for record, _ in records) == 100
    assert not any(record.reason.startswith(BEHIND.format("")) for record, _ in records)


def test_fragmented_films_that_were_joined_fail(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    data = film(tmp_path, "mp4", "-c:v libx264 -an -movflags frag_keyframe+empty_moov+default_base_moof -g 5")
    path.write_bytes(data * 2)
    ((record, _),) = curated(path, tmp_path / "out")
    assert record.state == "failed"
    assert record.reason.startswith("is several fragmented films joined")


@pytest.mark.parametrize("suffix", but(("mp4",), ("mp4", "flv", "wmv", "ogv")))
def test_what_writers_put_behind_a_film_is_none(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"tagged.{suffix}"
    box = b"\0\0\x20\0free" + bytes(0x2000 - 8) + b"\0\0\x08\0uuid" + bytes(0x800 - 8)
    tags = b"TAG" + b"title".ljust(125, b"\0") + b"ID3\x04\0\0\0\0\x10\0" + bytes(2048)
    path.write_bytes(film(tmp_path, suffix, UNREAD[suffix]) + (box + tags if suffix == "mp4" else tags))
    ((record, _),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.frames, record.reason) == ("kept", 50, "")


def test_an_error_of_the_container_that_ends_the_reading_is_said(tmp_path: Path) -> None:
    path = tmp_path / "film.y4m"
    data = b"FRAME\n".join(film(tmp_path, "y4m", "-pix_fmt yuv420p -an").split(b"FRAME\n")[:31])
    path.write_bytes(data + b"NO FRAME\n")
    (one, _), (rest, _) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (one.state, one.frames, rest.state, rest.stage) == ("kept", 30, "failed", "decode")
    assert rest.reason.startswith("reading ends before the end of the file: Invalid data")
    assert rest.reason.endswith(f"(behind byte {len(data)})")


def with_second_entry(data: bytes, kind: bytes) -> bytes:
    """The film with a second sample entry of a kind, of which the later runs of its chunks are."""
    film, begin, grown = bytearray(data), 0, []
    for name in TO_ENTRY:
        while film[begin + 4 : begin + 8] != name:
            begin += int.from_bytes(film[begin : begin + 4], "big")
        grown.append(begin)
        begin += 8
    runs = film.index(b"stsc", begin)
    count = int.from_bytes(film[runs + 8 : runs + 12], "big")
    assert count > 1
    for run in range(1, count):
        film[runs + 12 * run + 20 : runs + 12 * run + 24] = (2).to_bytes(4, "big")
    end = grown[-1] + int.from_bytes(film[grown[-1] : grown[-1] + 4], "big")
    entry = bytearray(film[begin + 8 : end])
    entry[4:8] = kind
    for at in grown:
        film[at : at + 4] = (int.from_bytes(film[at : at + 4], "big") + len(entry)).to_bytes(4, "big")
    film[begin + 4 : begin + 8] = (2).to_bytes(4, "big")
    film[end:end] = entry
    return bytes(film)


@pytest.mark.parametrize(("kind", "name"), [(b"avc3", "avc3"), (b"encv", "encrypted"), (b"avc1", "")])
def test_pictures_of_another_sample_entry_are_said(kind: bytes, name: str, tmp_path: Path) -> None:
    """FFmpeg reads those of the first kind alone, and nothing of the file is cut off."""
    whole = write_video(tmp_path / "whole.mp4", (100,), audio=True)
    (path := tmp_path / "a.mp4").write_bytes(with_second_entry(whole.read_bytes(), kind))
    records = [record for record, _ in curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})]
    found = probe(path.read_bytes())
    if not name:
        assert [(record.state, record.end_s) for record in records] == [("kept", 4.0)]
        assert (found.frames, found.rest) == (100, False)
        return
    last = records[-1]
    assert (last.state, last.end_s) == ("failed", 4.0)
    assert last.reason == f"pictures stored as {name}, behind those as avc1, are left out, as by FFmpeg"
    assert not any("cut off" in record.reason for record in records)
    assert found.frames < 100
    assert found.rest


def test_an_index_of_a_part_of_the_film_says_so(tmp_path: Path) -> None:
    """As a camera writes it that mends a recording after a loss of power; the rest was in no row, without a word."""
    path = write_video(tmp_path / "film.mp4", (60,))
    data = path.read_bytes()
    at = data.index(b"mdat") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    for further, words in ((size // 2, ""), (3 * size, "its index lists 25 % of its media data")):
        whole = (size + further).to_bytes(4, "big") + data[at + 4 : at + size] + b"\x2a" * further
        path.write_bytes(data[:at] + whole + data[at + size :])
        ((record, _),) = curated(path, tmp_path / str(further), spans={"min_clip_s": 1.0})
        assert (record.state, record.frames) == ("kept", 60)
        assert words in record.reason
        assert bool(record.reason) == bool(words)
        assert probe(path.read_bytes()).rest == bool(words)
