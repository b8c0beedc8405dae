"""Colour matrices that FFmpeg's scaler lacks are named, in films and in tars."""

from pathlib import Path

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
