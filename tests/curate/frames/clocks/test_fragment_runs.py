"""Fragmented MP4 of live recorders whose clock stepped: a sample lasts for hours, and FFmpeg calls the film as long."""

import struct
from pathlib import Path

import pytest

from reelweave.curate.foreign.probe import probe
from tests.cutting import curated
from tests.media import read_numbers
from tests.player import encode_numbered

FRAMES, HOUR = 75, 3600


def film(path: Path, coder: str = "-c:v libx264 -bf 0") -> Path:
    return encode_numbered(
        path, FRAMES, f"{coder} -g 25 -movflags +frag_keyframe+empty_moov+default_base_moof"
    )


def with_long_sample(data: bytes, fragment: int, ticks: int) -> bytes:
    """A film in which the last sample of a fragment lasts so long; all durations are written out."""
    begin = [place for place in range(len(data)) if data.startswith(b"moof", place)][fragment] - 4
    (size,) = struct.unpack_from(">I", data, begin)
    moof = data[begin : begin + size]
    head, run = moof.index(b"tfhd"), moof.index(b"trun")
    (usual,) = struct.unpack_from(">I", moof, head + 4 + 8)
    flags = int.from_bytes(moof[run + 5 : run + 8], "big")
    (count,) = struct.unpack_from(">I", moof, run + 8)
    rows, fields = run + 16 + 4 * (flags & 4 > 0), sum(flags & flag > 0 for flag in (0x200, 0x400, 0x800))
    assert not flags & 0x100
    samples = b"".join(
        struct.pack(">I", ticks if index == count - 1 else usual)
        + moof[rows + 4 * fields * index : rows + 4 * fields * (index + 1)]
        for index in range(count)
    )
    grown = 4 * count
    (run_size,) = struct.unpack_from(">I", moof, run - 4)
    offset = struct.unpack_from(">i", moof, run + 12)[0] + grown
    new_run = struct.pack(">I4sI", run_size + grown, b"trun", flags | 0x100) + moof[run + 8 : run + 12]
    new_run += struct.pack(">i", offset) + moof[run + 16 : rows] + samples
    part = moof.index(b"traf") - 4
    (part_size,) = struct.unpack_from(">I", moof, part)
    changed = struct.pack(">I", size + grown) + moof[4:part] + struct.pack(">I", part_size + grown)
    changed += moof[part + 4 : run - 4] + new_run + moof[run - 4 + run_size :]
    return data[:begin] + changed + data[begin + size :]


@pytest.mark.parametrize("fragment", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("hours", [2, pytest.param(13, marks=pytest.mark.thorough)])
def test_a_film_is_as_long_as_its_last_fragment_says(tmp_path: Path, fragment: int, hours: int) -> None:
    """A film of 3 s had a `failed` row of hours that it promises, or was refused for lasting as long."""
    path = film(tmp_path / "film.mp4")
    path.write_bytes(with_long_sample(path.read_bytes(), fragment, hours * HOUR * 12800))
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (record.state, record.reason, record.end_s) == ("kept", "", pytest.approx(3.0))
    assert read_numbers(clip) == list(range(FRAMES))
    media = probe(path.read_bytes())
    assert (media.frames, media.fps, media.duration_s) == (FRAMES, 25.0, pytest.approx(3.0))


def test_a_last_picture_that_is_held_for_seconds_is_held(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4")
    path.write_bytes(with_long_sample(path.read_bytes(), 2, 20 * 12800))
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert [(record.stage, round(record.end_s, 2)) for record, _ in records] == [
        ("cut", 2.96),
        ("gaps", 22.96),
    ]
    assert probe(path.read_bytes()).duration_s == pytest.approx(22.96)
