"""Films with sound that are cut off state how long they were, where their header states their size."""

import io
import re
from pathlib import Path

import pytest

from reelweave.curate.frames.container.cut_off import promise_of
from tests.cutting import curated
from tests.player import ffmpeg
from tests.thorough import but

KINDS = {
    "a.mkv": "libx264 -g 25 -c:a aac",
    "a.flv": "libx264 -g 25 -c:a aac",
    "a.asf": "wmv2 -c:a wmav2",
    "a.avi": "mpeg4 -c:a mp2",
}


def film(folder: Path, name: str, seconds: int = 5) -> bytes:
    """Write a film, in Matroska without the tags that FFmpeg adds, as mkvmerge puts its own behind the film."""
    path = folder / name
    sources = f"-f lavfi -i testsrc2=s=160x128:r=25:d={seconds} -f lavfi -i sine=d={seconds}"
    ffmpeg(f"{sources} -pix_fmt yuv420p -c:v {KINDS[name]} -y {path}".split())
    return path.read_bytes().replace(b"DURATION", b"DURATIOX")


def promised_of_cut_off(data: bytes) -> float | None:
    """The seconds that a film promises which states more bytes than there are."""
    promise = promise_of(io.BytesIO(data))
    return promise.seconds if promise is not None and promise.is_cut_off else None


@pytest.mark.parametrize("name", but(("a.mkv",), KINDS))
def test_a_film_that_is_cut_off_says_which_seconds_are_missing(name: str, tmp_path: Path) -> None:
    data = film(tmp_path, name)
    path = tmp_path / name
    path.write_bytes(data[: len(data) * 3 // 5])
    *_, last = (record for record, _ in curated(path, tmp_path / "out", stitch={"enabled": False}))
    assert last.reason.startswith("the file is cut off: it promises 5.")
    assert 2 < last.start_s < 4
    assert 4.9 < last.end_s < 5.2


@pytest.mark.parametrize("name", KINDS)
def test_only_what_is_cut_off_promises_more(name: str, tmp_path: Path) -> None:
    data = film(tmp_path, name)
    assert promised_of_cut_off(data) is None
    assert promised_of_cut_off(data + data) is None
    promised_s = promised_of_cut_off(data[:-9])
    assert promised_s is not None
    assert 4.9 < promised_s < 5.2


@pytest.mark.parametrize("name", KINDS)
def test_a_header_that_is_cut_off_promises_nothing_or_its_seconds(name: str, tmp_path: Path) -> None:
    data = film(tmp_path, name, 1)
    for size in range(400):
        promised_s = promised_of_cut_off(data[:size])
        assert promised_s is None or 0.9 < promised_s < 1.2


def test_a_tag_of_the_whole_film_in_a_piece_promises_nothing(tmp_path: Path) -> None:
    """Tools that split Matroska by copying may leave the duration of the whole film in the tags of a track."""
    path = tmp_path / "a.mkv"
    ffmpeg(f"-f lavfi -i testsrc2=s=160x128:r=25:d=5 -f lavfi -i sine=d=5 -y {path}".split())
    data = path.read_bytes()
    stale = re.sub(rb"(DURATION.{1,9}?)00:00:05", rb"\g<1>01:18:05", data, flags=re.DOTALL)
    assert stale != data
    path.write_bytes(stale)
    ((record, _),) = curated(path, tmp_path / "out", shots={"detector": "fixed", "fixed": {"stride_s": 9}})
    assert (record.state, record.reason) == ("kept", "")
    assert record.end_s == pytest.approx(5, abs=0.05)
