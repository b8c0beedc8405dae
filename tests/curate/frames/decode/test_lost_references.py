"""H.264 without packets that others refer to: what follows up to the next key frame is no clip."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.cutting import curated
from tests.media import read_numbers
from tests.player import cut_by_copy, encode_numbered
from tests.thorough import but

CASES = [(suffix, b_frames) for suffix in (".mkv", ".mp4", ".flv") for b_frames in (2, 0)]


@pytest.mark.parametrize(("suffix", "b_frames"), but(CASES[:1], CASES, CASES[3:]))
def test_pictures_behind_a_lost_one_are_in_no_clip(suffix: str, b_frames: int, tmp_path: Path) -> None:
    encoder = f"-c:v libx264 -g 50 -sc_threshold 0 -bf {b_frames} -flags +cgop"
    whole = encode_numbered(tmp_path / f"whole{suffix}", 150, encoder)
    path = cut_by_copy(whole, tmp_path / f"film{suffix}", "", "-bsf:v noise=drop='between(n,60,62)'")
    assert path is not None
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert [record.state for record, _ in found] == ["kept", "failed", "kept"]
    assert "packets are lost that later ones refer to" in found[1][0].reason
    assert found[1][0].end_s == pytest.approx(4.0)
    shown = [read_numbers(clip) for _, clip in found if clip]
    assert all(after - before == 1 for numbers in shown for before, after in pairwise(numbers))
    assert (shown[0][0], shown[1]) == (0, list(range(100, 150)))
    assert 55 <= shown[0][-1] <= 60


def test_a_whole_film_has_no_loss(tmp_path: Path) -> None:
    film = encode_numbered(
        tmp_path / "film.mkv", 150, "-c:v libx264 -g 50 -bf 3 -refs 4 -x264-params b-pyramid=strict"
    )
    assert [record.state for record, _ in curated(film, tmp_path / "out")] == ["kept"]
