"""Colour matrices that FFmpeg's scaler lacks are named, in films and in tars."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from tests.cutting import curated
from tests.player import ffmpeg


def film(path: Path, matrix: str) -> Path:
    tags = f"colormatrix={matrix}:colorprim=bt2020:transfer=bt2020-10"
    encoder = f"-c:v libx264 -preset ultrafast -pix_fmt yuv420p -x264-params {tags}"
    ffmpeg(f"-f lavfi -i testsrc2=s=96x64:r=10:d=0.8 {encoder} -y {path}".split())
    return path


@pytest.mark.parametrize(("matrix", "name"), [("ICtCp", "14 (ICtCp)"), ("chroma-derived-nc", "12 (chroma-")])
def test_a_matrix_that_cannot_be_converted_is_named_with_what_to_do(
    matrix: str, name: str, tmp_path: Path
) -> None:
    path = film(tmp_path / "a.mp4", matrix)
    ((record, _),) = curated(path, tmp_path / "out")
    with pytest.raises(SourceError) as refused:
        probe(path.read_bytes())
    for reason in (record.reason, str(refused.value)):
        assert reason.startswith(f"has colours by matrix {name}")
        assert "zscale=matrix=709" in reason


@pytest.mark.parametrize("matrix", ["smpte170m", "bt2020nc", "fcc"])
def test_other_matrices_are_read(matrix: str, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", matrix)
    ((record, _),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert record.state == "kept"
    assert probe(path.read_bytes()).frames == 8


@pytest.mark.parametrize("matrix", [3, 200])
def test_a_matrix_that_is_reserved_counts_as_none(matrix: int, tmp_path: Path) -> None:
    """FFmpeg's decoders take one that the codec states so, and its filters refuse one that the container states."""
    plain = tmp_path / "plain.mp4"
    ffmpeg(f"-f lavfi -i testsrc2=s=96x64:r=10:d=0.8 -c:v libx264 -pix_fmt yuv420p -y {plain}".split())
    words = f"-i {plain} -c copy -color_primaries 1 -color_trc 1 -colorspace 1 -movflags write_colr -y"
    ffmpeg([*words.split(), str(tmp_path / "stated.mp4")])
    film = bytearray((tmp_path / "stated.mp4").read_bytes())
    at = film.index(b"nclx") + 8
    film[at : at + 2] = matrix.to_bytes(2, "big")
    (path := tmp_path / "a.mp4").write_bytes(film)
    ((of_none, expected),) = curated(plain, tmp_path / "none", spans={"min_clip_s": 0.5})
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (of_none.state, record.state, record.reason) == ("kept", "kept", "")
    with av.open(io.BytesIO(expected)) as container, av.open(io.BytesIO(clip)) as other:
        pictures = [next(film.decode(video=0)).to_ndarray(format="rgb24") for film in (container, other)]
    assert np.abs(pictures[0].astype(int) - pictures[1]).mean() < 0.5
    assert probe(bytes(film)).frames == 8
