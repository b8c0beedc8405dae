"""Panoramas and 3D are no flat pictures, and the accounting says so."""

import struct
from pathlib import Path

import pytest

from tests.curate.frames.container.test_side_data import LOSSLESS, SHORT, box, stated
from tests.cutting import curated
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import beyond


def panorama(kind: bytes) -> bytes:
    """The box of a spherical film, by Google's Spherical Video V2; its projection covers the whole picture."""
    projection = box(kind, bytes(4 + 16 if kind == b"equi" else 4 + 8))
    return box(b"sv3d", box(b"svhd", bytes(5)) + box(b"proj", box(b"prhd", bytes(16)) + projection))


def views(mode: int) -> bytes:
    return box(b"st3d", bytes(4) + struct.pack(">B", mode))


EQUIRECTANGULAR = "a panorama (equirectangular) is shown as it is stored"
SIDE_BY_SIDE = "both views of 3D (side by side) are shown as they are stored"


@pytest.mark.parametrize(
    ("name", "added", "reason"),
    beyond(
        2,
        [
            ("a.mp4", panorama(b"equi") + views(2), f"{EQUIRECTANGULAR}; {SIDE_BY_SIDE}"),
            ("a.mp4", views(0), ""),
            ("a.mkv", panorama(b"equi"), EQUIRECTANGULAR),
            ("a.mkv", views(1), "both views of 3D (one above the other) are shown as they are stored"),
            ("a.mp4", panorama(b"cbmp"), "a panorama (cube map) is shown as it is stored"),
        ],
    ),
)
def test_pictures_that_players_show_otherwise_are_told(
    name: str, added: bytes, reason: str, tmp_path: Path
) -> None:
    path = stated(tmp_path / name, added, options=LOSSLESS)
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.reason) == ("kept", reason)


def test_views_that_the_stream_alone_states_are_told(tmp_path: Path) -> None:
    """As broadcasts and Blu-rays mark them, in the metadata of H.264."""
    plain, path = write_video(tmp_path / "plain.mp4", (50,)), tmp_path / "packed.ts"
    ffmpeg(["-i", str(plain), "-c:v", "libx264", "-x264-params", "frame-packing=3", "-y", str(path)])
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.reason) == ("kept", SIDE_BY_SIDE)
