"""AVI stores times of coding alone: where frames are moved, holes among them still tell which pictures are held."""

from fractions import Fraction
from pathlib import Path

import av
import pytest

from reelweave.curate.source_pass.scan import CODED
from tests.cutting import curated
from tests.media import read_numbers, write_video

FRAMES, GROUP, HOLE = 60, 20, 12
ONE_SHOT = {"detector": "fixed", "fixed": {"stride_s": 9}}


def film(path: Path, codec: str, first: int, b_frames: int) -> Path:
    """Write numbered frames as AVI, whose packets from one on come 12 frames later, behind empty slots."""
    options = {"bf": str(b_frames), "g": str(GROUP)}
    whole = write_video(path.with_name("whole.avi"), (FRAMES,), codec=codec, options=options)
    with av.open(whole) as source, av.open(path, "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        copy.time_base = Fraction(1, 25)
        for coded, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            packet.stream, packet.time_base = copy, Fraction(1, 25)
            packet.dts = coded + (HOLE if coded >= first else 0)
            packet.pts = packet.dts + b_frames + 1
            target.mux(packet)
    return path


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("first", [1, 2 * GROUP])
def test_a_hole_among_moved_frames_is_a_picture_that_is_held(codec: str, first: int, tmp_path: Path) -> None:
    path = film(tmp_path / "held.avi", codec, first, 2)
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    held = first - 1
    assert read_numbers(clip) == [*range(held), *[held] * (HOLE + 1), *range(first, FRAMES)]
    assert CODED in record.reason


@pytest.mark.parametrize(("first", "b_frames"), [(FRAMES, 2), (2 * GROUP, 0)])
def test_without_holes_or_moved_frames_nothing_is_in_doubt(first: int, b_frames: int, tmp_path: Path) -> None:
    path = film(tmp_path / "plain.avi", "mpeg4", first, b_frames)
    ((record, clip),) = curated(path, tmp_path / "out", shots=ONE_SHOT)
    held = [first - 1] * HOLE if first < FRAMES else []
    assert read_numbers(clip) == sorted([*range(FRAMES), *held])
    assert CODED not in record.reason
