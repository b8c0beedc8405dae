"""Damage of VP9, which FFmpeg conceals, costs the frames up to the next key frame."""

from pathlib import Path

import av
import pytest

from tests.cutting import curated
from tests.media import write_video

SPANS = {"min_clip_s": 0.5}


@pytest.fixture
def film(tmp_path: Path) -> Path:
    options = {"g": "25", "cpu-used": "8"}
    return write_video(tmp_path / "film.webm", (100,), codec="libvpx-vp9", options=options)


def test_damage_of_vp9_is_no_part_of_a_clip(film: Path, tmp_path: Path) -> None:
    ((whole, _),) = curated(film, tmp_path / "whole", spans=SPANS)
    assert (whole.state, whole.frames, whole.reason) == ("kept", 100, "")
    with av.open(str(film)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][30]
    data = bytearray(film.read_bytes())
    data[packet.pos + packet.size // 2] ^= 4
    film.write_bytes(data)
    records = [record for record, _ in curated(film, tmp_path / "damaged", spans=SPANS)]
    kept = [(record.start_s, record.end_s) for record in records if record.state == "kept"]
    assert kept == [(0, pytest.approx(1.16, abs=0.041)), (2, 4)]
    (damage,) = (record for record in records if record.state == "failed")
    assert "damaged packet" in damage.reason
    assert (damage.start_s, damage.end_s) == (pytest.approx(1.16, abs=0.041), 2)
