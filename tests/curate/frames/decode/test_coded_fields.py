"""Pictures that are coded as fields: of HEVC half pictures, which no decoder here weaves, of H.264 whole ones."""

import re
import shlex
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown, read_times
from reelweave.loader.read.decode import decode
from tests.cutting import curated
from tests.field_coder import write_fields
from tests.media import read_number, read_numbers
from tests.player import ffmpeg
from tests.thorough import but

_FIELDS = (
    "-f lavfi -i testsrc2=s=320x192:r=50:d=2.4 -vf tinterlace=interleave_{0},setfield={1},separatefields"
)
_CODED = "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params interlace={1}:log-level=none -y"


def coded_as_fields(path: Path, first: str) -> Path:
    """A film of 320x192 at 25 frames per second, with the top or the bottom field first."""
    words = f"{_FIELDS} {_CODED}".format(first, {"top": "tff", "bottom": "bff"}[first])
    ffmpeg([*words.split(), str(path)])
    return path


@pytest.mark.parametrize("name", but(("top.ts",), ("top.ts", "bottom.mp4", "top.mkv")))
def test_hevc_coded_as_fields_is_refused_with_the_command_that_weaves(name: str, tmp_path: Path) -> None:
    first = name.partition(".")[0]
    path = coded_as_fields(tmp_path / name, first)
    ((record, _),) = curated(path, tmp_path / "out", probe={"interlaced": "keep"})
    assert record.state == "failed"
    assert record.reason.startswith("is HEVC coded as fields, each a picture of half the height")
    command = re.search("`ffmpeg (.*)`", record.reason)
    assert command is not None
    woven = tmp_path / "woven.mkv"
    words = command[1].replace("FILE", str(path), 1).replace("NEW_FILE.mkv", str(woven))
    ffmpeg(["-y", *shlex.split(words.replace("first_field=top", f"first_field={first}"))])
    ((record, clip),) = curated(woven, tmp_path / "woven out")
    assert (record.state, record.width, record.height, record.fps) == ("kept", 320, 192, 25.0)
    assert abs(record.duration_s - 2.4) < 0.05
    with av.open(str(woven)) as container:
        assert next(container.decode(video=0)).interlaced_frame  # so that clips of it are deinterlaced
    assert clip


def test_index_refuses_samples_of_hevc_coded_as_fields(tmp_path: Path) -> None:
    path = coded_as_fields(tmp_path / "film.mp4", "top")
    with pytest.raises(SourceError, match=r"is HEVC coded as fields.*weave"):
        probe(path.read_bytes())


@pytest.mark.parametrize("suffix", but(("mkv",), ("mkv", "mp4", "ts")))
def test_fields_of_h264_that_are_packets_of_their_own_are_one_frame(tmp_path: Path, suffix: str) -> None:
    """`index` counted each field as a frame, and streams asked for twice as many as there are."""
    path = write_fields(tmp_path / f"fields.{suffix}", 60)
    data = path.read_bytes()
    media = probe(data)
    assert (media.frames, media.fps, media.duration_s, media.interlaced) == (60, 25.0, 2.4, True)
    assert count_shown(data) == 60
    times_s = read_times(data)
    assert times_s is not None
    assert times_s.tolist() == pytest.approx([number / 25 for number in range(60)], abs=2e-3)
    video = np.zeros((3, 3, 128, 160), np.uint8)
    decode(data, np.array([0, 30, 59]), video)
    assert [read_number(picture) for picture in video.transpose(1, 2, 3, 0)] == [0, 30, 59]
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (record.fps, read_numbers(clip)) == (25.0, list(range(60)))
