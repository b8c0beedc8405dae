"""Segments of a stream taken up in its middle, and films that are encrypted."""

import re
import struct
from pathlib import Path

import av
import pytest

from reelweave.curate.frames.probe import ProbeConfig, probe
from reelweave.curate.frames.source import open_video
from tests.cutting import curated
from tests.media import read_numbers, write_video
from tests.thorough import but


def boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        found.append((data[place + 4 : place + 8], data[place : place + size]))
        place += size
    return found


def muxed(source: Path, path: Path, options: dict[str, str]) -> Path:
    """Copy the pictures of a film with options of the muxer."""
    with av.open(str(source)) as film, av.open(str(path), "w", options=options) as target:
        stream = target.add_stream_from_template(film.streams.video[0])
        for packet in film.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return path


@pytest.mark.parametrize("b_frames", ["0", "2"])
def test_later_segments_behind_an_init_segment_are_whole(b_frames: str, tmp_path: Path) -> None:
    source = write_video(tmp_path / "whole.mp4", (200,), options={"bf": b_frames, "g": "25"})
    path = muxed(source, tmp_path / "a.mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof"})
    parts, segment = [], 0
    for kind, data in boxes(path.read_bytes()):
        segment += kind == b"moof"
        if kind in (b"ftyp", b"moov") or (kind in (b"moof", b"mdat") and segment > 4):
            parts.append(data)
    path.write_bytes(b"".join(parts))
    ((record, clip),) = curated(path, tmp_path / "out")
    assert (record.state, record.start_s, record.end_s) == ("kept", 0, pytest.approx(4.0))
    assert read_numbers(clip) == list(range(100, 200))


@pytest.mark.parametrize("late_s", but((1_764_000_000,), (1_764_000_000, 15_000)))
def test_fragments_of_a_live_stream_last_as_long_as_they_are(late_s: int, tmp_path: Path) -> None:
    """The clock of a live stream begins hours ago, or in 1970; FFmpeg gives its end as a duration."""
    source = write_video(tmp_path / "whole.mp4", (100,), options={"bf": "2", "g": "25"})
    path = muxed(source, tmp_path / "a.mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof"})
    with av.open(str(path)) as film:
        (stream,) = film.streams.video
        ticks = int(late_s / (stream.time_base or 1))
    media = bytearray(path.read_bytes())
    for found in re.finditer(rb"tfdt\x01\0\0\0", media):
        (time,) = struct.unpack_from(">Q", media, found.end())
        struct.pack_into(">Q", media, found.end(), time + ticks)
    path.write_bytes(media)
    ((record, clip),) = curated(path, tmp_path / "out")
    assert (record.state, record.start_s, record.end_s) == ("kept", 0, pytest.approx(4.0))
    assert read_numbers(clip) == list(range(100))
    with path.open("rb") as file, open_video(file) as (container, stream):
        assert probe(container, stream, ProbeConfig(), file).promised_s == pytest.approx(4.0)


def test_an_encrypted_film_is_called_so(tmp_path: Path) -> None:
    keys = {
        "encryption_scheme": "cenc-aes-ctr",
        "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
        "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
    }
    path = muxed(write_video(tmp_path / "whole.mp4", (50,)), tmp_path / "a.mp4", keys)
    ((record, _),) = curated(path, tmp_path / "out")
    assert record.state == "failed"
    assert record.reason == "is encrypted (cenc), and no key is known here: decrypt it first"
