"""Samples whose codec says how pictures are turned are indexed and trained as curation shows them."""

from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset import open_dataset
from reelweave.loader.read.decode import decode
from tests.curate.foreign.foreign_sets import index
from tests.curate.frames.decode.test_lasting_turn import FRAMES, SIZE, film
from tests.foreign_tars import by_tarfile
from tests.media import read_number
from tests.player import ffmpeg
from tests.thorough import but

UPRIGHT = SIZE[::-1]


def numbers(data: bytes, first: int, last: int) -> list[int]:
    """Return the numbers of frames ``[first, last)`` of a film that is turned upright by 90 degrees."""
    frames = np.arange(first, last)
    width, height = UPRIGHT
    video_CTHW = np.empty((3, len(frames), height, width), np.uint8)
    decode(data, frames, video_CTHW, upright=False)
    return [read_number(np.rot90(picture, -1)) for picture in video_CTHW.transpose(1, 2, 3, 0)]


@pytest.mark.parametrize(
    ("name", "codec"),
    but(
        (("a.mp4", "libx264"), ("a.mkv", "libx265")),
        [(name, codec) for name in ("a.mp4", "a.mkv", "a.ts") for codec in ("libx264", "libx265")],
    ),
)
def test_a_message_at_each_key_frame_turns_all_frames(tmp_path: Path, name: str, codec: str) -> None:
    data = film(tmp_path / name, codec, every=25).read_bytes()
    media = probe(data)
    assert ((media.width, media.height), media.frames, media.turned) == (UPRIGHT, FRAMES, True)
    assert numbers(data, 0, FRAMES) == list(range(FRAMES))
    assert numbers(data, 60, 70) == list(range(60, 70))  # from a key frame in the middle


def test_pieces_by_copy_show_no_frame_that_is_cut_off(tmp_path: Path) -> None:
    whole, piece = film(tmp_path / "whole.mp4", "libx264", every=25), tmp_path / "piece.mp4"
    ffmpeg(f"-ss 1.4 -i {whole} -c copy -y {piece}".split())
    data = piece.read_bytes()
    media = probe(data)
    assert ((media.width, media.height), media.frames) == (UPRIGHT, FRAMES - 35)
    assert numbers(data, 0, FRAMES - 35) == list(range(35, FRAMES))


def test_a_film_that_is_turned_in_part_fails_as_its_shape_changes(tmp_path: Path) -> None:
    data = film(tmp_path / "a.mp4", "libx264", every=1000).read_bytes()
    with pytest.raises(SourceError, match="changes its picture from 128x192 to 192x128 at frame 25"):
        probe(data)


def test_turned_samples_are_counted_and_said(tmp_path: Path) -> None:
    data = film(tmp_path / "a.mp4", "libx264", every=25).read_bytes()
    by_tarfile(tmp_path / "set/a.tar", [("a", {"mp4": data, "txt": b"a film"})])
    (note,) = index(tmp_path / "set").notes
    assert note.startswith("1 sample is turned upright as the codec says (display orientation)")
    (row,) = open_dataset(tmp_path / "set").index.to_pylist()
    assert dict(row["attributes"]) == {"turn": "codec"}
