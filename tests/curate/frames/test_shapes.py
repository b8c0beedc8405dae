"""Films whose pictures change their shape in mid-film: clips end there, and each shows true shapes."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.picture import MOST_SHAPES
from tests.curate.frames.test_probe import growing
from tests.cutting import curated, pictures
from tests.player import ffmpeg
from tests.thorough import but

BOX = 96  # displayed side of the white square, pixels
SHORT = {"spans": {"min_clip_s": 0.5}, "cut": {"crf": 10}}


def part(path: Path, shown: tuple[int, int], stored: tuple[int, int], encoder: str, hue: int = 0) -> Path:
    """A part of two seconds, stored with another width than shown, with a white square at its centre."""
    box = f"drawbox=x=iw/2-{BOX // 2}:y=ih/2-{BOX // 2}:w={BOX}:h={BOX}:color=white:t=fill"
    scaled = f"scale={stored[0]}:{stored[1]},setdar={shown[0]}/{shown[1]}"
    source = (
        f"-f lavfi -i testsrc2=s={shown[0]}x{shown[1]}:r=25:d=2 -vf hue=h={hue},lutyuv=y=val/2,{box},{scaled}"
    )
    ffmpeg(f"{source} {encoder} -y {path}".split())
    return path


def joined(folder: Path, name: str, *parts: Path) -> Path:
    names = folder / "parts.txt"
    names.write_text("".join(f"file {one.name}\n" for one in parts))
    ffmpeg(f"-f concat -i {names} -c copy -y {folder / name}".split())
    return folder / name


def square(clip: bytes) -> list[tuple[int, int]]:
    """Width and height of the white square in each frame."""
    with av.open(io.BytesIO(clip)) as container:
        sides = []
        for frame in container.decode(video=0):
            white = frame.to_ndarray(format="gray") > 225
            middle_y, middle_x = white.shape[0] // 2, white.shape[1] // 2
            sides.append((int(white[middle_y].sum()), int(white[:, middle_x].sum())))
        return sides


X264 = "-c:v libx264 -pix_fmt yuv420p"
CASES = {
    "size.ts": ((320, 192), (320, 192), (180, 320), (180, 320), X264),
    "aspect.ts": ((384, 288), (352, 288), (512, 288), (352, 288), X264),
    "mpeg2.ts": ((384, 288), (352, 288), (512, 288), (352, 288), "-c:v mpeg2video -q:v 2"),
}


def film(folder: Path, name: str) -> Path:
    shown, stored, other_shown, other_stored, encoder = CASES[name]
    first = part(folder / "first.ts", shown, stored, encoder)
    return joined(folder, name, first, part(folder / "second.ts", other_shown, other_stored, encoder, 120))


@pytest.mark.parametrize("name", but(["size.ts"], CASES))
def test_a_clip_ends_where_the_shape_changes(name: str, tmp_path: Path) -> None:
    shown, other = CASES[name][0], CASES[name][2]
    clips = curated(film(tmp_path, name), tmp_path / "out", **SHORT)
    assert [(record.width, record.height, record.frames) for record, _ in clips] == [
        (*shown, 50),
        (*other, 50),
    ]
    for _, clip in clips:
        assert np.abs(np.array(square(clip)) - BOX).max() <= 2
        assert len(pictures(clip)) == 50


def test_a_listed_segment_across_the_change_is_refused_by_time_and_sizes(tmp_path: Path) -> None:
    path = film(tmp_path, "size.ts")
    rows = tmp_path / "list.csv"
    rows.write_text(f"path,start,end\n{path.name},0,1.2\n{path.name},1.2,3\n{path.name},3,4\n")
    clips = curated(rows, tmp_path / "out", **SHORT)
    records = [record for record, _ in clips if record.segment is not None]
    assert [(one.state, one.width) for one in records] == [("kept", 320), ("filtered", 0), ("kept", 180)]
    assert "change from 320x192 to 180x320 at 2.00 s" in records[1].reason
    split = curated(rows, tmp_path / "split", spans={"min_clip_s": 0.5, "listed": "shots"})
    assert [one.width for one, _ in split] == [320, 320, 180, 180]


def test_packets_behind_a_change_are_not_copied(tmp_path: Path) -> None:
    path = film(tmp_path, "size.ts")
    first, second = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5}, cut={"mode": "copy"})
    assert first[0].state == "kept", first[0].reason
    assert second[0].state == "failed"
    assert "change their shape before it, from 320x192 to 180x320" in second[0].reason
    _, again = curated(path, tmp_path / "auto", spans={"min_clip_s": 0.5}, cut={"mode": "auto"})
    assert (again[0].state, again[0].width) == ("kept", 180)


def test_shapes_are_limited_in_number(tmp_path: Path) -> None:
    path = tmp_path / "hostile.h264"
    two = growing([(64, 64, 1), (80, 64, 1)])
    path.write_bytes(two * (MOST_SHAPES // 2 + 1))
    ((record, _),) = curated(path, tmp_path / "out")
    assert record.state == "failed"
    assert f"more than {MOST_SHAPES} times" in record.reason


HEVC = "-c:v libx265 -x265-params log-level=0:keyint=25:"
COLOURS = {
    "sdr": f"{HEVC}colorprim=bt709:transfer=bt709:colormatrix=bt709 -pix_fmt yuv420p",
    "pq": f"{HEVC}colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc -pix_fmt yuv420p10le",
    "hlg": f"{HEVC}colorprim=bt2020:transfer=arib-std-b67:colormatrix=bt2020nc -pix_fmt yuv420p10le",
    "bt601": f"{HEVC}colorprim=bt470bg:transfer=bt470bg:colormatrix=bt470bg -pix_fmt yuv420p",
}
CHANGES = {
    ("sdr", "pq", 8): "from SDR to PQ",
    ("pq", "sdr", 8): "from PQ to SDR",
    ("sdr", "pq", 10): "from SDR to PQ",
    ("hlg", "pq", 10): "from HLG to PQ",
    ("sdr", "bt601", 8): "from colour matrix 1 to 5",
}


@pytest.mark.parametrize(("first", "second", "max_bits"), but([("sdr", "pq", 10)], CHANGES))
def test_a_clip_ends_where_the_colours_change_and_each_part_has_its_own(
    first: str, second: str, max_bits: int, tmp_path: Path
) -> None:
    parts = [tmp_path / f"{kind}.ts" for kind in (first, second)]
    for path, kind in zip(parts, (first, second), strict=True):
        ffmpeg(f"-f lavfi -i testsrc=s=192x128:r=25:d=2 {COLOURS[kind]} -y {path}".split())
    path = joined(tmp_path, "film.ts", *parts)
    settings = {"shots": {"detector": "fixed"}, "cut": {"max_bits": max_bits}, "spans": {"min_clip_s": 0.5}}
    clips = curated(path, tmp_path / "out", **settings)
    assert [(record.state, record.frames) for record, _ in clips] == [("kept", 50)] * 2
    for (_, clip), alone in zip(clips, parts, strict=True):
        ((_, expected),) = curated(alone, tmp_path / "alone", **settings)
        assert clip == expected
    rows = tmp_path / "list.csv"
    rows.write_text(f"path,start,end\n{path.name},1.2,3\n")
    (refused,) = [one for one, _ in curated(rows, tmp_path / "listed", **settings) if one.segment is not None]
    assert f"pictures change {CHANGES[first, second, max_bits]} at 2.00 s" in refused.reason
